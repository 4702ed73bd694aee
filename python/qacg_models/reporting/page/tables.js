// Tables as text: the rules of `qacg predict` for reading a CSV (data/columns.py) and for writing one
// (inference/prediction_format.py).

const DELIMITERS = [",", ";", "\t", "|"];
// Cells that a spreadsheet would run as a formula (utils/plain_text.py).
const FORMULA = /^'*(?:[\t\r]|[\p{White_Space}\x1c-\x1f\0]*[=+\-@＝＋－＠])/u;

class TableError extends Error {}

// The text of a file: UTF-8, UTF-16 with a byte order mark, or Windows-1252 if it is neither.
function decodeText(bytes) {
  const mark = bytes[0] * 256 + bytes[1];
  const utf16 = { 0xfffe: "utf-16le", 0xfeff: "utf-16be" }[mark];
  try {
    const encoding = utf16 ?? "utf-8";
    return { text: new TextDecoder(encoding, { fatal: true }).decode(bytes), encoding };
  } catch {
    return { text: new TextDecoder("windows-1252").decode(bytes), encoding: "windows-1252" };
  }
}

// Only line feeds end lines, as other line ends occur inside texts.
const withoutReturns = (text) => text.replace(/\r+(?=\n|$)/g, "");

// Records of a CSV, each with the number of its first line, counted after `before` other lines.
function* csvRecords(text, delimiter, before = 0) {
  const fault = (line, what) => new TableError(`line ${line}: is not CSV with the delimiter ${shown(delimiter)} (${what})`);
  let [at, line, start] = [0, before + 1, before + 1];
  let fields = [];
  while (at < text.length) {
    let field = "";
    if (text[at] === '"') {
      for (;;) {
        const end = text.indexOf('"', at + 1);
        if (end < 0) throw fault(start, "a quotation mark is not closed");
        field += text.slice(at + 1, end);
        at = end + 1;
        if (text[at] !== '"') break;
        field += '"';
      }
      line += field.split("\n").length - 1;
      if (at < text.length && text[at] !== delimiter && text[at] !== "\n") throw fault(start, "text follows a quotation mark");
    } else {
      const from = at;
      while (at < text.length && text[at] !== delimiter && text[at] !== "\n") at++;
      field = text.slice(from, at);
      if (field.includes("\r")) throw fault(start, "a carriage return outside quotation marks");
    }
    fields.push(field);
    if (text[at] === delimiter) {
      at++;
      if (at < text.length && text[at] !== "\n") continue;
      fields.push("");
    }
    at++;
    line++;
    yield { line: start, fields };
    [fields, start] = [[], line];
  }
}

const shown = (delimiter) => (delimiter === "\t" ? "tab" : `“${delimiter}”`);
const isBlank = (text) => /^[\p{White_Space}\x1c-\x1f]*$/u.test(text);

function firstRecord(text, delimiter) {
  try {
    for (const { fields } of csvRecords(text, delimiter)) if (!fields.every(isBlank)) return fields.map((one) => one.trim());
  } catch (error) {
    if (!(error instanceof TableError)) throw error;
  }
  return [];
}

// The delimiter of a CSV: X, if the first line is Excel's sep=X. Otherwise the candidates are the delimiters with which
// the header has the expected column, or all delimiters if no delimiter gives this column. The result is the candidate
// with which the header has the most fields.
function findDelimiter(text, column) {
  const declared = /^"?sep=(.)"?\s*\n/i.exec(text);
  if (declared) return { delimiter: declared[1], rest: text.slice(declared[0].length), before: 1 };
  const headers = DELIMITERS.map((delimiter) => [delimiter, firstRecord(text, delimiter)]);
  const fitting = headers.filter(([, fields]) => fields.includes(column));
  const [delimiter] = (fitting.length ? fitting : headers).reduce((best, one) => (one[1].length > best[1].length ? one : best));
  return { delimiter, rest: text, before: 0 };
}

// Column names, with a number appended to repeated names.
function distinct(names) {
  const found = [];
  for (const given of names) {
    let name = given;
    for (let number = 2; found.includes(name); number++) name = `${given} (${number})`;
    found.push(name);
  }
  return found;
}

// A CSV as column names and rows; blank lines are ignored.
function readCsv(content, column) {
  const { delimiter, rest, before } = findDelimiter(withoutReturns(content), column);
  let names = null;
  const rows = [];
  for (const { line, fields } of csvRecords(rest, delimiter, before)) {
    if (fields.every(isBlank)) continue;
    if (names === null) names = distinct(fields.map((field) => field.trim()));
    else if (fields.length > names.length || fields.length < Math.min(2, names.length)) {
      const mark = shown(delimiter);
      const advice = `put fields that contain ${mark} into quotation marks, and separate fields by ${mark}`;
      throw new TableError(`line ${line}: expected ${names.length} fields as in the header, got ${fields.length}; ${advice}`);
    } else rows.push({ line, cells: [...fields, ...Array(names.length - fields.length).fill("")] });
  }
  if (!rows.length) throw new TableError("the table has no rows below its header");
  return { names, rows };
}

// The lines of a text file; blank lines are ignored.
function readLines(content) {
  const lines = withoutReturns(content).split("\n");
  return lines.map((text, place) => ({ line: place + 1, text })).filter(({ text }) => !isBlank(text));
}

const csvLine = (cells, escapeFormulas) =>
  cells
    .map((cell) => (escapeFormulas && FORMULA.test(cell) ? `'${cell}` : cell))
    .map((cell) => (/[",\r\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell))
    .join(",") + "\n";
