"use strict";
// Draws the maps of every .viewer from the JSON inside it. The choice of layer and head is kept in the address, as
// #layer=2&head=3, both counted from 1; head=all shows every head.

const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};

// Sixteen-bit steps to values, laid out (layer, head, query, key).
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
    row.quasi = unpack(row.quasi);
    row.combined = row.softmax.map((value, i) => value + row.quasi[i]);
  }
  return data;
}

let choice = { layer: 1, head: null }; // no head: all of them

// Links inside the page change the address too, and say nothing of layers and heads.
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  if (asked.has("layer") || asked.has("head")) {
    choice = { layer: Number(asked.get("layer") ?? 1), head: Number(asked.get("head")) || null };
  }
}

const within = (number, most) => Number.isInteger(number) && number >= 1 && number <= most;

function choose(layer, head) {
  choice = { layer, head };
  history.replaceState(null, "", `#layer=${layer}&head=${head ?? "all"}`);
  drawAll();
}

function buttons(label, entries, chosen, pick) {
  const box = make("div", "choice");
  box.append(make("span", "", label));
  for (const [text, value] of entries) {
    const button = make("button", "", text);
    button.type = "button";
    button.setAttribute("aria-pressed", String(value === chosen));
    button.addEventListener("click", () => pick(value));
    box.append(button);
  }
  return box;
}

const counted = (count) => Array.from({ length: count }, (_, i) => [String(i + 1), i + 1]);

// The values of one head: a view of (query, key).
const headMap = (data, row, kind, layer, head) => {
  const size = row.tokens.length ** 2;
  const start = ((layer - 1) * data.heads + head - 1) * size;
  return row[kind].subarray(start, start + size);
};

// One scale for all rows and heads of a layer, so that what looks alike is alike.
function layerLimit(data, kind, layer) {
  let limit = 1e-12;
  for (const row of data.rows) {
    for (let head = 1; head <= data.heads; head++) {
      for (const value of headMap(data, row, kind, layer, head)) limit = Math.max(limit, Math.abs(value));
    }
  }
  return limit;
}

function canvasOf(data, row, values, limit) {
  const length = row.tokens.length;
  const canvas = make("canvas");
  canvas.width = canvas.height = length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(length, length);
  const middle = (data.shades.length - 1) / 2;
  values.forEach((value, i) => {
    const shade = data.shades[Math.round(middle + middle * Math.max(-1, Math.min(1, value / limit)))];
    image.data.set([...shade, 255], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

function tellValues(canvas, readout, row, values, name) {
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (offset, extent) =>
      Math.max(0, Math.min(row.tokens.length - 1, Math.floor((offset / extent) * row.tokens.length)));
    const query = place(event.clientY - box.top, box.height);
    const key = place(event.clientX - box.left, box.width);
    const value = signed(values[query * row.tokens.length + key], 4);
    readout.textContent = `${row.title}, ${name}: ${row.tokens[query]} looks at ${row.tokens[key]} with ${value}`;
  });
}

function scaleOf(data, limit) {
  const scale = make("span", "scale");
  const strip = make("i");
  strip.style.background = `linear-gradient(to right, ${data.shades.map((shade) => `rgb(${shade})`).join(",")})`;
  const digits = limit < 0.1 ? 4 : 2;
  scale.append(make("span", "", signed(-limit, digits)), strip, make("span", "", signed(limit, digits)), "white is 0");
  return scale;
}

function labelledMap(row, canvas, width) {
  const box = make("div", "map");
  const length = row.tokens.length;
  const cell = Math.max(9, Math.min(20, Math.floor((width - 110) / length)));
  canvas.style.width = canvas.style.height = `${cell * length}px`;
  const font = `${Math.min(13, cell + 1)}px/${cell}px system-ui, sans-serif`;
  const labels = (className, side) => {
    const list = make("div", className);
    for (const token of row.tokens) {
      const label = make("span", "", token);
      label.style.font = font;
      label.style[side] = `${cell}px`;
      list.append(label);
    }
    return list;
  };
  box.append(labels("left", "height"), canvas, labels("below", "width"));
  return box;
}

function headGrid(data, row, kind, limit, layer, readout) {
  const grid = make("div", "heads");
  grid.style.gridTemplateColumns = `repeat(${Math.min(data.heads, 4)}, 1fr)`;
  for (const [text, head] of counted(data.heads)) {
    const values = headMap(data, row, kind, layer, head);
    const figure = make("figure");
    const canvas = canvasOf(data, row, values, limit);
    tellValues(canvas, readout, row, values, `layer ${layer}, head ${text}, ${data.names[kind]}`);
    figure.append(make("figcaption", "", `head ${text}`), canvas);
    figure.addEventListener("click", () => choose(layer, head));
    grid.append(figure);
  }
  return grid;
}

function draw(root, data) {
  const layer = within(choice.layer, data.layers) ? choice.layer : 1;
  const head = within(choice.head, data.heads) ? choice.head : null;
  root.replaceChildren(...root.querySelectorAll(":scope > script"));
  const bar = make("div", "bar");
  bar.append(
    buttons("Layer", counted(data.layers), layer, (picked) => choose(picked, head)),
    buttons("Head", [["all", null], ...counted(data.heads)], head, (picked) => choose(layer, picked)),
  );
  const hint = "Point at a map to read a value" + (head === null ? "; click it to enlarge the head." : ".");
  const readout = make("div", "readout", hint);
  const width = Math.min(root.clientWidth || 1000, 1152);
  const side = Math.max(1, Math.min(data.rows.length, Math.floor(width / 420)));
  root.append(bar, readout);
  for (const [kind, name] of Object.entries(data.names)) {
    const limit = layerLimit(data, kind, layer);
    const title = make("div", "kind");
    title.append(make("strong", "", name), scaleOf(data, limit));
    const columns = make("div", "columns");
    columns.style.gridTemplateColumns = `repeat(${side}, minmax(0, 1fr))`;
    for (const row of data.rows) {
      const column = make("div");
      column.append(make("h4", "", row.title));
      if (head === null) {
        column.append(headGrid(data, row, kind, limit, layer, readout));
      } else {
        const values = headMap(data, row, kind, layer, head);
        const canvas = canvasOf(data, row, values, limit);
        tellValues(canvas, readout, row, values, `layer ${layer}, head ${head}, ${name}`);
        column.append(labelledMap(row, canvas, width / side - 24));
      }
      columns.append(column);
    }
    root.append(title, columns);
  }
}

const viewers = [...document.querySelectorAll(".viewer")].map((root) => [root, readData(root)]);

function drawAll() {
  for (const [root, data] of viewers) draw(root, data);
}

window.addEventListener("hashchange", () => {
  readAddress();
  drawAll();
});
readAddress();
drawAll();
document.documentElement.dataset.drawn = String(viewers.length);
