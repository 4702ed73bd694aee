// BERT's tokenizer. The classes of characters are those of the model's own tokenizer (`tokenizer_facts`), so that the
// Unicode version of the browser does not matter. Tests compare it with the tokenizer of the model.

const WHITE_SPACE = /\p{White_Space}+/u;

// A regular expression for one character (with the suffix "+": for one or more) whose code point is in one of the
// ranges [first, last]; an empty string if there are no ranges.
function classOf(ranges, suffix = "") {
  const escaped = (code) => `\\u{${code.toString(16)}}`;
  const inside = ranges.map(([first, last]) => `${escaped(first)}-${escaped(last)}`).join("");
  return inside && new RegExp(`[${inside}]${suffix}`, "gu");
}

class WordPiece {
  constructor(facts) {
    this.facts = facts;
    this.ids = new Map(Object.entries(facts.vocabulary));
    this.longestPiece = Math.max(...Array.from(this.ids.keys(), (piece) => piece.length));
    this.special = new Map(Object.entries(facts.special));
    const names = [...this.special.keys()].sort((one, other) => other.length - one.length);
    this.specialPattern = new RegExp(names.map((name) => name.replace(/[^\p{L}\p{N}]/gu, "\\$&")).join("|"), "g");
    this.dropped = classOf(facts.dropped, "+");
    this.ideographs = classOf(facts.ideographs);
    this.punctuation = classOf(facts.punctuation);
    this.marks = classOf(facts.marks, "+");
  }

  normalize(text) {
    const { facts } = this;
    if (facts.nfc) text = text.normalize("NFC");
    if (this.dropped) text = text.replace(this.dropped, "");
    if (facts.clean) text = text.replace(/\p{White_Space}/gu, " ");
    if (this.ideographs) text = text.replace(this.ideographs, " $& ");
    if (this.marks) text = text.normalize("NFD").replace(this.marks, "");
    // One character at a time, as the tokenizer does: in a whole word, toLowerCase would return a final sigma in Greek.
    return facts.lowercase ? Array.from(text, (letter) => letter.toLowerCase()).join("") : text;
  }

  // Adds the ids of a word to `into`: the longest known piece, then the longest known piece of the rest, and so on. For a
  // word that is too long, or has an unknown part, adds the id of the unknown token.
  word(text, into) {
    const ends = [0]; // of letters, in code units
    for (const letter of text) ends.push(ends.at(-1) + letter.length);
    const letters = ends.length - 1;
    const start = into.length;
    for (let from = 0; letters <= this.facts.longest; ) {
      if (from === letters) return;
      const pieceTo = (to) => (from ? this.facts.prefix : "") + text.slice(ends[from], ends[to]);
      let to = Math.min(letters, from + this.longestPiece);
      while (to > from && !this.ids.has(pieceTo(to))) to--;
      if (to === from) break;
      into.push(this.ids.get(pieceTo(to)));
      from = to;
    }
    into.length = start;
    into.push(this.facts.unknown);
  }

  // Ids of a text without special tokens at its ends. A name such as [SEP] inside a text is that token.
  pieces(text) {
    const found = [];
    const ordinary = (part) => {
      const separated = this.normalize(part).replace(this.punctuation, " $& ");
      for (const word of separated.split(WHITE_SPACE)) if (word) this.word(word, found);
    };
    let start = 0;
    for (const match of text.matchAll(this.specialPattern)) {
      ordinary(text.slice(start, match.index));
      found.push(this.special.get(match[0]));
      start = match.index + match[0].length;
    }
    ordinary(text.slice(start));
    return found;
  }

  // Model inputs of a text, or of a text and the name of a context (null: none), and whether something was cut off.
  encode(text, context, maxLength) {
    const { start, end } = this.facts;
    let first = this.pieces(text);
    let second = context === null ? null : this.pieces(context);
    const room = maxLength - (second ? 3 : 2);
    const cut = first.length + (second?.length ?? 0) > room;
    if (cut && !second) first = first.slice(0, room);
    if (cut && second) {
      const [one, other] = longestFirst(first.length, second.length, room);
      [first, second] = [first.slice(0, one), second.slice(0, other)];
    }
    const ids = [start, ...first, end, ...(second ? [...second, end] : [])];
    const types = ids.map((_, place) => (place < first.length + 2 ? 0 : 1));
    return { ids, types, cut };
  }
}

// Numbers of tokens to which two segments are truncated ("longest_first" of the tokenizers library).
function longestFirst(first, second, room) {
  const shorter = Math.min(first, second);
  let [small, large] = [shorter, Math.max(shorter, room - shorter)];
  if (shorter > room) large = shorter;
  if (small + large > room) {
    small = Math.floor(room / 2);
    large = small + (room % 2);
  }
  return first > second ? [large, small] : [small, large];
}
