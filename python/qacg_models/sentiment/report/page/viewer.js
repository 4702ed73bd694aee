// Draws the maps of every .viewer from the JSON inside it. Pointer, taps and arrow keys read values into a status line,
// which screen readers announce.

// Name and caption of each map, of models with quasi-attention and without.
const QUASI = {
  softmax: ["P (softmax)", "Attention between the words, before the aspect's part is added"],
  quasi: ["λ·G (gated sigmoid)", "Attention that the aspect adds (blue) or takes away (orange)"],
  combined: ["A = P + λ·G", "The attention that the model uses, with the aspect's part"],
};
const PLAIN = { softmax: ["P (softmax)", "The attention that the model uses"] };
// Orange to white to blue: the lower half of ColorBrewer's PuOr and the upper half of RdBu. Red would suggest an error.
const COLOURS = [
  [127, 59, 8], [179, 88, 6], [224, 130, 20], [253, 184, 99], [254, 224, 182], [247, 247, 247],
  [209, 229, 240], [146, 197, 222], [67, 147, 195], [33, 102, 172], [5, 48, 97],
];
// 65 colours from the lowest to the highest value; the middle one, of 0, is white.
const SHADES = Array.from({ length: 65 }, (_, i) => {
  const place = (i / 64) * (COLOURS.length - 1);
  const [low, high] = [COLOURS[Math.floor(place)], COLOURS[Math.ceil(place)]];
  return low.map((part, k) => Math.round(part + (high[k] - part) * (place % 1)));
});
const MIDDLE = (SHADES.length - 1) / 2;

// Converts 16-bit steps to values with layout (layer, head, query, key).
const unpack = ({ step, values }) => {
  const bytes = Uint8Array.from(atob(values), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, i) => step * view.getInt16(2 * i, true));
};

const signed = (value, digits) => (value < 0 ? "\u2212" : "+") + Math.abs(value).toFixed(digits);

function readData(root) {
  const data = JSON.parse(root.querySelector("script").textContent);
  for (const row of data.rows) {
    row.softmax = unpack(row.softmax);
    if (row.quasi) {
      row.quasi = unpack(row.quasi);
      row.combined = row.softmax.map((value, i) => value + row.quasi[i]);
    }
  }
  return data;
}

let choice = null; // number of the layer, and of the head or null for all heads, in all viewers of the page

function choose(...chosen) {
  choice = chosen;
  viewers.forEach(draw);
}

// A row of buttons, which is not redrawn with the maps, so that keyboard focus stays.
function buttons(label, entries, pick) {
  const box = make("div", { class: "choice", role: "group", "aria-label": label }, make("span", {}, label));
  const made = entries.map(([text, value]) => {
    const button = make("button", { type: "button", "aria-label": `${label} ${text}` }, text);
    button.addEventListener("click", () => pick(value));
    box.append(button);
    return [button, value];
  });
  const mark = (chosen) =>
    made.forEach(([button, value]) => button.setAttribute("aria-pressed", String(value === chosen)));
  return { box, mark };
}

const counted = (count) => Array.from({ length: count }, (_, i) => [String(i + 1), i + 1]);

// The (query, key) values of one head.
const headMap = (data, row, kind, layer, head) => {
  const size = row.tokens.length ** 2;
  const start = ((layer - 1) * data.heads + head - 1) * size;
  return row[kind].subarray(start, start + size);
};

// One scale for all rows and heads of a layer, so that equal colours are equal values. Shares of softmax end at 1.
function layerLimit(data, kind, layer) {
  if (kind === "softmax") return 1;
  let limit = 1e-12;
  for (const row of data.rows) {
    for (let head = 1; head <= data.heads; head++) {
      for (const value of headMap(data, row, kind, layer, head)) limit = Math.max(limit, Math.abs(value));
    }
  }
  return limit;
}

// From -1 to 1. Most shares are far below 1, so their colour grows with the square root.
const strength = (value, kind, limit) =>
  kind === "softmax" ? Math.sqrt(Math.max(0, value)) : Math.max(-1, Math.min(1, value / limit));

function canvasOf(row, values, kind, limit) {
  const length = row.tokens.length;
  const canvas = make("canvas", { width: length, height: length });
  const context = canvas.getContext("2d");
  const image = context.createImageData(length, length);
  values.forEach((value, i) => {
    const shade = SHADES[Math.round(MIDDLE + MIDDLE * strength(value, kind, limit))];
    image.data.set([...shade, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

const sentenceOf = (row, values, cell) => {
  const length = row.tokens.length;
  const [query, key] = [Math.floor(cell / length), cell % length];
  return `“${row.tokens[query]}” attends to “${row.tokens[key]}” with ${signed(values[cell], 4)}`;
};

function scaleOf(kind, limit) {
  const strip = (shades) => {
    const colours = shades.map((shade) => `rgb(${shade})`).join(",");
    return make("i", { style: `background: linear-gradient(to right, ${colours})` });
  };
  if (kind === "softmax") {
    const [lower, upper] = [SHADES.slice(MIDDLE, 1.5 * MIDDLE + 1), SHADES.slice(1.5 * MIDDLE)].map(strip);
    return make("span", { class: "scale" }, "0", lower, "0.25", upper, "1");
  }
  const digits = limit < 0.1 ? 4 : 2;
  return make("span", { class: "scale" }, signed(-limit, digits), strip(SHADES), signed(limit, digits));
}

// One head with its tokens. Arrow keys move a cursor over the cells; `report` receives the cell of the cursor.
function labelledMap(row, canvas, width, name, report) {
  const length = row.tokens.length;
  const least = window.innerWidth < 640 ? 13 : 9; // touch needs larger cells; the map scrolls in its frame
  const cell = Math.max(least, Math.min(20, Math.floor((width - 110) / length)));
  canvas.style.width = canvas.style.height = `${cell * length}px`;
  const font = `${Math.min(13, cell + 1)}px/${cell}px system-ui, sans-serif`;
  const labels = (side, extent) => {
    const tokens = row.tokens.map((token) => make("span", { style: `font: ${font}; ${extent}: ${cell}px` }, token));
    return make("div", { class: side, "aria-hidden": "true" }, ...tokens);
  };
  const [left, below] = [labels("left", "height"), labels("below", "width")];
  const cursor = make("i", { style: `width: ${cell}px; height: ${cell}px`, hidden: "" });
  let at = 0;
  const go = (next) => {
    const named = (cell) => [left.children[Math.floor(cell / length)], below.children[cell % length]];
    for (const label of named(at)) label.classList.remove("here");
    for (const label of named(next)) label.classList.add("here");
    at = next;
    cursor.hidden = false;
    cursor.style.top = `${Math.floor(at / length) * cell}px`;
    cursor.style.left = `${(at % length) * cell}px`;
    report(at);
  };
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `${name}. Arrow keys read its cells.`);
  canvas.addEventListener("focus", () => go(at));
  canvas.addEventListener("keydown", (event) => {
    const [down, across] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !across) return;
    event.preventDefault();
    const [query, key] = [Math.floor(at / length) + down, (at % length) + across];
    if (Math.min(query, key) >= 0 && Math.max(query, key) < length) go(query * length + key);
    cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
  for (const event of ["pointermove", "pointerdown"]) {
    canvas.addEventListener(event, ({ clientX, clientY }) => {
      const box = canvas.getBoundingClientRect();
      const place = (offset) => Math.max(0, Math.min(length - 1, Math.floor(offset / cell)));
      go(place(clientY - box.top) * length + place(clientX - box.left));
    });
  }
  return make("div", { class: "map" }, left, make("div", { class: "field" }, canvas, cursor), below);
}

// All heads of a layer as buttons; a click enlarges the head.
function headGrid(data, row, kind, limit, layer, enlarge) {
  const columns = `grid-template-columns: repeat(${Math.min(data.heads, 4)}, minmax(0, 1fr))`;
  const heads = counted(data.heads).map(([text, head]) => {
    const canvas = canvasOf(row, headMap(data, row, kind, layer, head), kind, limit);
    const name = `head ${text} of ${row.title}: enlarge`;
    const button = make("button", { type: "button", "aria-label": name }, `head ${text}`, canvas);
    button.addEventListener("click", () => enlarge(head));
    return button;
  });
  return make("div", { class: "heads", style: columns }, ...heads);
}

// The permanent elements of a viewer: selectors, container of the maps, and status line.
function build(root) {
  const data = readData(root);
  choice ??= [data.first, null];
  const layers = buttons("Layer", counted(data.layers), (picked) => choose(picked, choice[1]));
  const heads = buttons("Head", [["all", null], ...counted(data.heads)], (picked) => choose(choice[0], picked));
  const bar = make("div", { class: "bar" }, layers.box, heads.box);
  const [maps, readout] = [make("div", { class: "maps" }), make("p", { class: "readout", role: "status" })];
  root.replaceChildren(...root.querySelectorAll(":scope > script"), bar, maps, readout);
  return { root, data, layers, heads, maps, readout };
}

function draw({ root, data, layers, heads, maps, readout }) {
  const [layer, head] = choice;
  layers.mark(layer);
  heads.mark(head);
  maps.replaceChildren();
  readout.textContent = head === null ? "Click a map to enlarge the head, and to read its values."
    : "To read a value, point at the map, tap it, or use Tab and the arrow keys.";
  const width = Math.min(root.clientWidth || 1000, 1152);
  const fitting = Math.max(1, Math.floor(width / (head === null ? 360 : 420)));
  const side = Math.ceil(data.rows.length / Math.ceil(data.rows.length / fitting)); // columns per line
  const kinds = data.rows[0].quasi ? QUASI : PLAIN;
  for (const [kind, [name, caption]] of Object.entries(kinds)) {
    const limit = layerLimit(data, kind, layer);
    const symbols = make("span", { class: "symbols" }, name, scaleOf(kind, limit));
    const title = make("div", { class: "kind" }, make("h4", {}, caption), symbols);
    const columns = data.rows.map((row, place) => {
      const column = make("div", {}, make("h5", {}, row.title));
      if (head === null) {
        const enlarge = (picked) => {
          choose(layer, picked);
          maps.querySelectorAll(".kind + .columns")[Object.keys(kinds).indexOf(kind)]
            .children[place].querySelector("canvas").focus();
        };
        column.append(headGrid(data, row, kind, limit, layer, enlarge));
      } else {
        const values = headMap(data, row, kind, layer, head);
        const canvas = canvasOf(row, values, kind, limit);
        const named = `${row.title}, layer ${layer}, head ${head}`;
        const report = (cell) => {
          readout.textContent = `${named}, ${name}: ${sentenceOf(row, values, cell)}`;
        };
        const map = labelledMap(row, canvas, width / side - 24, `${named}: ${caption}`, report);
        column.append(make("div", { class: "frame" }, map));
      }
      return column;
    });
    const grid = `grid-template-columns: repeat(${side}, minmax(0, 1fr))`;
    maps.append(title, make("div", { class: "columns", style: grid }, ...columns));
  }
}

const viewers = [...document.querySelectorAll(".viewer")].map(build);
if (viewers.length) choose(...choice);
document.documentElement.dataset.drawn = String(viewers.length);
