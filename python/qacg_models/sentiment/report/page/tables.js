// Tables as text: the rules of `qacg predict` for reading a CSV (sentiment/tables.py) and for writing one
// (sentiment/predictor.py).

const DELIMITERS = [",", ";", "\t", "|"];
const EXCEL_BLOCK = 16; // rows of a block, at whose ends Excel omits the delimiters of empty cells
const IMPORT_ID = /^\s*\{\s*"ImportId"\s*:/; // a cell of the third header row of Qualtrics
// Cells that a spreadsheet would run as a formula (utils/text.py).
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

// Records of a CSV, each with its text and the number of its first line, counted after `before` other lines.
function* csvRecords(text, delimiter, before = 0) {
  const fault = (line, what) => new TableError(`line ${line}: is not CSV with the delimiter ${shown(delimiter)} (${what})`);
  let [at, line, start] = [0, before + 1, before + 1];
  let [fields, begin] = [[], 0];
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
    yield { line: start, fields, text: text.slice(begin, at - 1) };
    [fields, start, begin] = [[], line, at];
  }
}

// Whether most lines of a record look like rows of their own, because they have the header's number of delimiters.
function joinsRows(lines, delimiter, width, spaced) {
  const count = (line, part) => line.split(part).length - 1;
  const inTexts = !spaced && ",;".includes(delimiter);
  const filled = lines.filter((line) => !isBlank(line));
  const whole = filled.filter((line) => count(line, delimiter) - (inTexts ? count(line, `${delimiter} `) : 0) === width).length;
  return width > 0 && whole > 1 && 2 * whole > filled.length;
}

// The records, after a check for quotation marks that join several rows.
function* separateRecords(records, delimiter) {
  let [width, spaced] = [null, false];
  for (const { line, fields, text } of records) {
    const lines = text.split("\n");
    if (lines.length > 1 && joinsRows(lines, delimiter, width ?? lines[0].split(delimiter).length - 1, spaced)) {
      const advice = "correct the quotation marks, or run qacg predict with --quoting none or --quoting minimal";
      const place = `lines ${line} to ${line + lines.length - 1}`;
      throw new TableError(`line ${line}: expected one row in a field in quotation marks, got ${place}; ${advice}`);
    }
    if (width === null && !fields.every(isBlank)) [width, spaced] = [fields.length - 1, text.includes(`${delimiter} `)];
    yield { line, fields };
  }
}

// The last records of a run, at least two, if they can be the parts of one record that line ends split: their fields add
// up to `least` to `most`, and one of them has fewer than `least`.
function partsOf(run, least, most) {
  for (let [number, total, shortest] = [1, 1, most]; number <= run.length; number++) {
    const count = run.at(-number).fields.length;
    [total, shortest] = [total + count - 1, Math.min(shortest, count)];
    if (number > 1 && shortest < least && least <= total && total <= most) return run.slice(-number);
  }
  return [];
}

// The number of columns up to the last one with a name.
const namedColumns = (header) => header.reduce((most, name, place) => (isBlank(name) ? most : place + 1), 0);

// The records that are not blank, and whether Excel omitted fields at the end of the record: all records of such a block
// have the same number of fields. The last block can have fewer rows; they are marked only after another block.
function* markedRecords(records) {
  let [header, block, isFirst, isExcel, read] = [null, [], true, false, 0];
  const marked = () => {
    const rows = block.filter(({ fields }) => !fields.every(isBlank));
    const widths = new Set(rows.map(({ fields }) => fields.length));
    const isShort = !isFirst && widths.size === 1 && Math.max(...widths) < namedColumns(header);
    isExcel ||= isShort && block.length === EXCEL_BLOCK;
    [block, isFirst] = [[], false];
    return rows.map((row) => ({ ...row, omitted: isShort && isExcel }));
  };
  for (const record of records) {
    block.push(record);
    if (header === null && !record.fields.every(isBlank)) header = record.fields;
    if (++read % EXCEL_BLOCK === 0 && header !== null) yield* marked();
  }
  if (header !== null) yield* marked();
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

// A CSV as column names, rows and notes for the user; blank lines are ignored.
function readCsv(content, column) {
  const { delimiter, rest, before } = findDelimiter(withoutReturns(content), column);
  const records = markedRecords(separateRecords(csvRecords(rest, delimiter, before), delimiter));
  const [rows, bad, short] = [[], [], []];
  let [names, named, run] = [null, 0, []];
  try {
    for (const { line, fields, omitted } of records) {
      if (names === null) {
        names = distinct(fields.map((field) => field.trim()));
        named = namedColumns(fields);
        continue;
      }
      const isOmitted = omitted && !short.length; // Excel itself writes no other short record
      run = fields.length < names.length && !isOmitted ? [...run.slice(-names.length), { line, fields }] : [];
      const parts = partsOf(run, named, names.length);
      if (parts.length || fields.length > names.length || fields.length < Math.min(2, names.length)) {
        bad.push(...(parts.length ? parts : [{ line, fields }]));
        run = [];
      } else {
        if (fields.length < named && !isOmitted) short.push(line);
        rows.push({ line, cells: [...fields, ...Array(names.length - fields.length).fill("")] });
      }
    }
  } catch (error) {
    if (!(error instanceof TableError) || !bad.length) throw error;
  }
  if (bad.length) {
    const mark = shown(delimiter);
    const advice = `put fields that contain ${mark} or a line end into quotation marks, and separate fields by ${mark}`;
    const also = bad.length > 1 ? ` (also line ${listed(bad.slice(1).map(({ line }) => line))})` : "";
    const got = `expected ${names.length} fields as in the header, got ${bad[0].fields.length}`;
    throw new TableError(`line ${bad[0].line}: ${got}${also}; ${advice}`);
  }
  const notes = surveyNotes(rows);
  if (short.length) notes.push(`${short.length} rows have fewer fields than the header (line ${listed(short)})`);
  if (!rows.length) throw new TableError("the table has no rows below its header");
  return { names, rows, notes };
}

const listed = (lines) => lines.slice(0, 20).join(", ") + (lines.length > 20 ? ` and ${lines.length - 20} more` : "");

// Removes the rows that Qualtrics writes below the header: question texts, then import ids; returns a note about them.
function surveyNotes(rows) {
  const hasIds = ({ cells }) => cells.some(Boolean) && cells.every((cell) => !cell || IMPORT_ID.test(cell));
  const place = rows.slice(0, 2).findIndex(hasIds);
  const lines = rows.splice(0, place + 1).map(({ line }) => line);
  return lines.length ? [`left out the header rows of a survey tool (line ${lines.join(", ")})`] : [];
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
