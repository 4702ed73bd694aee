// Predicts texts in the browser, by the rules of `qacg predict`, and shows the summary of `qacg predict --summary`.
// The page contains the model and the runtime.

const MOST_TOKENS = 1024; // maximum number of tokens in a batch; the page handles events between batches
const WINDOW = 256; // number of texts that are sorted by length together
const SHOWN = 200; // maximum number of predictions in the table
const TELLING = 3; // maximum number of example sentences for each aspect and label
const LONGEST = 400; // maximum number of characters of an example sentence
const DIGITS = 6; // decimals of a probability

const get = (id) => document.getElementById(id);
const facts = JSON.parse(get("facts").textContent);
const tokenizer = new WordPiece(facts.tokenizer);
let ort, session;
let file = null; // { table } for a CSV, or { lines } for a text file
let stopped = false;

const say = (text) => (get("status").textContent = text);
const counted = (count) => count.toLocaleString("en");
const percent = (share) => (100 * share).toFixed(1);

// The bytes of an element, stored as base64 of gzip; the element is removed to free memory.
async function unpack(id) {
  const letters = atob(get(id).textContent);
  get(id).remove();
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place++) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function load() {
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old; use a browser of 2023 or later");
  const [runtime, wasm, model] = [await unpack("runtime"), await unpack("wasm"), await unpack("model")];
  const address = URL.createObjectURL(new Blob([runtime], { type: "text/javascript" }));
  ort = await import(address);
  URL.revokeObjectURL(address);
  ort.env.wasm.numThreads = 1; // threads require a server that isolates the page
  ort.env.wasm.wasmBinary = wasm;
  session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
}

// Rows of one text, one for each context: targets that occur in the text (if the model has targets) and chosen aspects.
function rowsOf(text, aspects) {
  const named = (target) => {
    const word = "[\\p{L}\\p{N}_]";
    const escaped = target.replace(/[^\p{L}\p{N}]/gu, (letter) => `\\u{${letter.codePointAt(0).toString(16)}}`);
    return new RegExp(`(?<!${word})${escaped}(?!${word})`, "iu").test(text);
  };
  const targets = facts.has_targets ? facts.targets.filter(named) : [""];
  return targets.flatMap((target) => aspects.map((aspect) => {
    const contextId = facts.targets.indexOf(target) * facts.aspects.length + facts.aspects.indexOf(aspect);
    return { target, aspect, contextId, context: facts.contexts[contextId] };
  }));
}

// The reason why a text has no prediction; empty if it has one.
function problemOf(text, aspects) {
  if (isBlank(text)) return "empty";
  if (/\p{Surrogate}/u.test(text)) return "with half of a character";
  return rowsOf(text, aspects).length ? "" : "without a target of the model";
}

// Logits of rows, each { ids, types, contextId }.
async function logitsOf(rows) {
  const length = Math.max(...rows.map(({ ids }) => ids.length));
  const tensor = (fill, shape) => {
    const [count, size = 1] = shape;
    const data = new BigInt64Array(count * size);
    rows.forEach((row, place) => fill(row).forEach((value, at) => (data[place * size + at] = BigInt(value))));
    return new ort.Tensor("int64", data, shape);
  };
  const matrix = (fill) => tensor(fill, [rows.length, length]);
  const padded = (ids) => [...ids, ...Array(length - ids.length).fill(facts.pad_token_id)];
  const inputs = {
    input_ids: matrix(({ ids }) => padded(ids)),
    attention_mask: matrix(({ ids }) => ids.map(() => 1)),
    token_type_ids: matrix(({ types }) => types),
    context_ids: tensor(({ contextId }) => [contextId], [rows.length]),
  };
  const given = Object.fromEntries(session.inputNames.map((name) => [name, inputs[name]]));
  const { logits } = await session.run(given);
  const classes = facts.labels.length;
  return rows.map((_, place) => Array.from(logits.data.slice(place * classes, (place + 1) * classes)));
}

const largest = (values) => values.indexOf(Math.max(...values));

// softmax(logits / temperature); a temperature for each label is selected by the label with the highest logit.
function probabilitiesOf(logits) {
  const best = largest(logits);
  const temperature = facts.temperatures[facts.temperatures.length > 1 ? best : 0];
  const powers = logits.map((value) => Math.exp((value - logits[best]) / temperature));
  const sum = powers.reduce((total, value) => total + value, 0);
  return powers.map((value) => value / sum);
}

// Adds label and probabilities to each row of a window; calls `seen` with the number of rows after every batch. Ends
// early if the user stops it.
async function predictRows(rows, seen) {
  const order = [...rows].sort((one, other) => one.ids.length - other.ids.length);
  for (let start = 0; start < order.length && !stopped; ) {
    let end = start + 1;
    while (end < order.length && (end + 1 - start) * order[end].ids.length <= MOST_TOKENS) end++;
    const batch = order.slice(start, end);
    const found = await logitsOf(batch);
    batch.forEach((row, place) => {
      row.probabilities = probabilitiesOf(found[place]);
      row.label = facts.labels[largest(row.probabilities)];
    });
    start = end;
    seen(batch.length);
    await new Promise((resume) => setTimeout(resume)); // lets the page handle events
  }
}

// Predicts texts { line, text, others }. Adds `rows` to each text (empty without a prediction), and `problem` (empty with
// a prediction). Returns the finished texts, and the number of truncated texts.
async function predict(texts, aspects) {
  let cut = 0;
  const done = [];
  for (let start = 0; start < texts.length && !stopped; start += WINDOW) {
    const window = texts.slice(start, start + WINDOW);
    const rows = [];
    for (const one of window) {
      one.problem = problemOf(one.text, aspects);
      one.rows = one.problem ? [] : rowsOf(one.text, aspects);
      for (const row of one.rows) {
        const second = facts.context_standalone ? null : row.context;
        Object.assign(row, tokenizer.encode(one.text, second, facts.max_length));
      }
      rows.push(...one.rows);
      cut += one.rows.some((row) => row.cut);
    }
    let count = 0;
    await predictRows(rows, (more) => {
      count += more;
      get("progress").value = (start + (window.length * count) / rows.length) / texts.length;
    });
    if (!stopped) done.push(...window);
  }
  return { texts: done, cut };
}

// ---- Output

function columnNames(others) {
  const shares = facts.labels.map((label) => `p(${label})`);
  const own = ["line", ...(facts.has_targets ? ["target"] : []), "text", "aspect", "label"];
  const names = [...own, ...shares];
  for (let name of others) {
    while (names.includes(name)) name = `${name} (input)`;
    names.push(name);
  }
  return names;
}

// The content of the CSV, in parts; a text without a prediction has an empty label.
function csvOf({ texts, others }, forSpreadsheet) {
  const parts = [(forSpreadsheet ? "\ufeff" : "") + csvLine(columnNames(others), forSpreadsheet)];
  for (const { line, text, rows, others: more } of texts) {
    for (const row of rows.length ? rows : [null]) {
      const shares = row ? row.probabilities.map((share) => share.toFixed(DIGITS)) : facts.labels.map(() => "");
      const target = facts.has_targets ? [row?.target ?? ""] : [];
      const own = [String(line), ...target, text, row?.aspect ?? "", row?.label ?? ""];
      parts.push(csvLine([...own, ...shares, ...more], forSpreadsheet));
    }
  }
  return parts;
}

function tableOf(header, rows) {
  const line = (cells) =>
    make("tr", {}, ...cells.map(({ tag = "td", content, ...attributes }) => make(tag, attributes, content)));
  return make("table", {}, make("thead", {}, line(header)), make("tbody", {}, ...rows.map(line)));
}

const framed = (table, name) => make("div", { class: "frame", role: "group", "aria-label": name, tabindex: "0" }, table);
const column = (content, isNumber) => ({ tag: "th", scope: "col", content, ...(isNumber ? { class: "number" } : {}) });
const rowHeader = (content) => ({ tag: "th", scope: "row", content });
const number = (content) => ({ class: "number", content });

function showPredictions(result) {
  const every = result.texts.flatMap((one) => one.rows.map((row) => ({ text: one.text, ...row })));
  const header = [column("text"), column("aspect"), column("label"), ...facts.labels.map((one) => column(`p(${one})`, true))];
  const rows = every.slice(0, SHOWN).map((row) => [
    rowHeader(row.text),
    { content: row.context },
    { content: row.label },
    ...row.probabilities.map((share) => number(share.toFixed(3))),
  ]);
  const download = make("button", { type: "button", id: "download" }, "Download all predictions as CSV");
  const spreadsheet = make("input", { type: "checkbox", id: "spreadsheet" });
  download.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob(csvOf(result, spreadsheet.checked), { type: "text/csv" }));
    make("a", { href: address, download: "predictions.csv" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
  const note = "for a spreadsheet program: add a byte order mark, and an apostrophe before cells that it would run as formulas";
  get("predictions").replaceChildren(
    make("p", {}, download, " ", make("label", {}, spreadsheet, ` ${note}`)),
    framed(tableOf(header, rows), "predictions"),
    ...(every.length > SHOWN ? [make("p", { class: "note" }, `The first ${SHOWN} of ${counted(every.length)} predictions are shown; the CSV has all.`)] : []),
  );
}

// Wilson's 95 % interval of a share (sentiment/metrics.py).
function wilson(count, total) {
  const z = 1.959963984540054;
  const [share, spread] = [count / total, (z * z) / total];
  const centre = (share + spread / 2) / (1 + spread);
  const half = (z * Math.sqrt((share * (1 - share)) / total + spread / (4 * total))) / (1 + spread);
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}

function sharesOf(rows, name) {
  const header = [column("label"), column("count", true), column("share in %", true), column("interval in %", true)];
  header.push({ tag: "th", scope: "col", content: make("span", { class: "hidden" }, "bar") });
  const lines = facts.labels.map((label) => {
    const count = rows.filter((row) => row.label === label).length;
    const [lower, upper] = wilson(count, rows.length);
    const share = percent(count / rows.length);
    const fill = make("span", { style: `width: ${share}%` });
    const line = make("i", { style: `left: ${percent(lower)}%; width: ${percent(upper - lower)}%` });
    const bar = make("span", { class: "bar", "aria-hidden": "true" }, fill, line);
    const interval = number(`${percent(lower)}–${percent(upper)}`);
    return [rowHeader(label), number(counted(count)), number(share), interval, { content: bar }];
  });
  return framed(tableOf(header, lines), `shares of ${name}`);
}

// The sentences with the highest probabilities of a label, without repetitions.
function tellingOf(rows, label) {
  const place = facts.labels.indexOf(label);
  const best = new Map();
  for (const row of rows.filter((one) => one.label === label)) {
    const text = row.text.slice(0, LONGEST);
    best.set(text, Math.max(best.get(text) ?? 0, row.probabilities[place]));
  }
  return [...best].sort((one, other) => other[1] - one[1]).slice(0, TELLING);
}

function showSummary({ texts }) {
  const every = texts.flatMap((one) => one.rows.map((row) => ({ text: one.text, ...row })));
  const contexts = [...new Set(every.map((row) => row.context))];
  const parts = [make("p", {}, `${counted(every.length)} predictions, one for each text and aspect.`)];
  for (const context of contexts) {
    const rows = every.filter((row) => row.context === context);
    parts.push(make("h3", {}, context));
    if (facts.has_absent) {
      const mentioned = rows.filter((row) => row.label !== facts.labels[0]).length;
      parts.push(make("p", {}, `${counted(mentioned)} of ${counted(rows.length)} texts have an opinion on ${context}.`));
    }
    parts.push(sharesOf(rows, context));
    for (const label of facts.has_absent ? facts.labels.slice(1) : facts.labels) {
      const found = tellingOf(rows, label);
      if (found.length) parts.push(make("h4", {}, `Examples with the highest probability of ${label}`));
      for (const [text, share] of found) parts.push(make("blockquote", {}, `${text} (${share.toFixed(2)})`));
    }
  }
  parts.push(make("p", { class: "note" }, facts.reading));
  get("summary").replaceChildren(...parts);
}

// ---- Input

const chosenAspects = () => [...document.querySelectorAll("#aspects input:checked")].map((box) => box.value);

// Predicts texts: disables the buttons meanwhile, shows the progress, and prints a summary line or the error.
async function run(texts, others) {
  const buttons = [get("predict-texts"), get("predict-file")].filter((button) => !button.disabled);
  const focused = document.activeElement;
  try {
    const aspects = chosenAspects();
    if (!aspects.length) throw new TableError("aspects: expected at least one, got none. Select an aspect");
    if (!texts.length) throw new TableError("texts: expected at least one, got none. Enter a text or choose a file");
    buttons.forEach((button) => (button.disabled = true));
    [get("progress").hidden, get("stop").hidden, stopped] = [false, false, false];
    say(`Predicting ${counted(texts.length)} texts …`);
    const begun = performance.now();
    const result = { ...(await predict(texts, aspects)), others };
    const seconds = (performance.now() - begun) / 1000;
    if (result.texts.some((one) => one.rows.length)) {
      showSummary(result);
      showPredictions(result);
    }
    say(endOf(result, texts.length, seconds));
  } catch (error) {
    say(`Error: ${error.message}`);
    if (!(error instanceof TableError)) throw error;
  } finally {
    buttons.forEach((button) => (button.disabled = false));
    [get("progress").hidden, get("stop").hidden] = [true, true];
    if (buttons.includes(focused)) focused.focus();
  }
}

function endOf({ texts, cut }, total, seconds) {
  const problems = new Map();
  for (const { problem } of texts) if (problem) problems.set(problem, (problems.get(problem) ?? 0) + 1);
  const skipped = [...problems].map(([problem, count]) => `skipped ${counted(count)} texts ${problem}`.replace("texts empty", "empty texts"));
  const predicted = `Predicted ${counted(texts.filter(({ problem }) => !problem).length)} texts`;
  const done = texts.length < total ? `Stopped after ${counted(texts.length)} of ${counted(total)} texts` : predicted;
  const shortened = cut ? [`truncated ${counted(cut)} texts to the model's maximum of ${facts.max_length} tokens`] : [];
  return `${[`${done} in ${seconds.toFixed(1)} s`, ...skipped, ...shortened].join("; ")}.`;
}

async function open(chosen) {
  try {
    const { text, encoding } = decodeText(new Uint8Array(await chosen.arrayBuffer()));
    const isTable = /\.(csv|tsv)$/i.test(chosen.name);
    if (!isTable && !/\.txt$/i.test(chosen.name)) throw new TableError("expected a .csv, .tsv or .txt file; save a workbook as CSV");
    if (text.includes("\0")) throw new TableError("the file is not text; save a workbook as CSV");
    file = isTable ? { table: readCsv(text, facts.text_column) } : { lines: readLines(text) };
    const names = file.table?.names ?? [];
    get("column").replaceChildren(...names.map((name) => make("option", {}, name)));
    get("column").value = names.includes(facts.text_column) ? facts.text_column : longestColumn(file.table);
    get("columns").hidden = !isTable;
    const count = isTable ? file.table.rows.length : file.lines.length;
    const notes = [`${counted(count)} ${isTable ? "rows" : "texts"}, read as ${encoding}`, ...(file.table?.notes ?? [])];
    get("file-note").textContent = `${chosen.name}: ${notes.join("; ")}.`;
    get("predict-file").disabled = !session;
  } catch (error) {
    file = null;
    get("predict-file").disabled = get("columns").hidden = true;
    get("file-note").textContent = `${chosen.name}: ${error.message}`;
    if (!(error instanceof TableError)) throw error;
  }
}

// The column whose first 50 cells are the longest, which is selected if no column has the name used in training.
function longestColumn(table) {
  if (!table) return "";
  const sizes = table.names.map((_, place) => table.rows.slice(0, 50).reduce((sum, { cells }) => sum + cells[place].length, 0));
  return table.names[largest(sizes)];
}

function textsOfFile() {
  if (file.lines) return [file.lines.map((one) => ({ ...one, others: [] })), []];
  const { names, rows } = file.table;
  const place = names.indexOf(get("column").value);
  const without = (cells) => cells.filter((_, at) => at !== place);
  const textOf = (cells) => (isBlank(cells[place]) ? "" : cells[place]);
  return [rows.map(({ line, cells }) => ({ line, text: textOf(cells), others: without(cells) })), without(names)];
}

function connect() {
  for (const aspect of facts.aspects) {
    const box = make("input", { type: "checkbox", value: aspect, checked: "" });
    get("aspects").append(make("label", {}, box, aspect));
  }
  get("predict-texts").addEventListener("click", () => run(readLines(get("texts").value).map((one) => ({ ...one, others: [] })), []));
  get("predict-file").addEventListener("click", () => run(...textsOfFile()));
  get("stop").addEventListener("click", () => (stopped = true));
  get("file").addEventListener("change", ({ target }) => target.files.length && open(target.files[0]));
  // The whole page accepts a dropped file, since a browser would open a file that is dropped outside the field.
  const marked = (is) => (event) => {
    event.preventDefault();
    get("drop").classList.toggle("over", is);
  };
  document.addEventListener("dragover", marked(true));
  document.addEventListener("dragleave", marked(false));
  document.addEventListener("drop", (event) => {
    marked(false)(event);
    if (event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
}

connect();
load().then(
  () => {
    get("predict-texts").disabled = false;
    get("predict-file").disabled = !file;
    document.documentElement.dataset.ready = (performance.now() / 1000).toFixed(2);
    say(`Ready after ${document.documentElement.dataset.ready} s.`);
  },
  (error) => {
    say(`Error: the model cannot be loaded (${error.message})`);
    throw error;
  },
);
