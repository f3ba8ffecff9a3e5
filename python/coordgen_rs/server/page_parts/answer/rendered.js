// A text that grows, as elements. Blocks that are complete stay as they are and are read no more; of the last
// ones only what changed is made anew, so that a step costs no more behind 4,000 tokens than behind four.

class Rendered {
  constructor(container, runs) {
    [this.container, this.runs] = [container, runs];
    [this.numDone, this.outline, this.pieces] = [0, [], []];
  }

  update(content) {
    const rest = content.slice(this.numDone), tokens = read(rest);
    let place = 0;
    for (const token of tokens) {
      token.from = this.numDone + lengthBefore(rest, place);
      token.to = this.numDone + lengthBefore(rest, place += token.raw.length);
    }
    const maker = new Maker(content, this.runs, this.numDone, this.outline);
    this.pieces = maker.fill(this.container, tokens, this.pieces);
    const done = this.pieces.splice(0, Math.max(0, tokens.length - 2)).at(-1);
    if (done) [this.numDone, this.outline] = [done.token.to, done.outline];
  }
}

const MOST_MARKS = 500;  // of emphasis in a paragraph: the library pairs each of them with all others

// Whether a text has too many stars and underscores to be asked which of them belong together; of the last one asked.
const crowded = { text: "", is: false };
function isCrowded(text) {
  if (text !== crowded.text) [crowded.text, crowded.is] = [text, (text.match(/[*_]+/g)?.length ?? 0) > MOST_MARKS];
  return crowded.is;
}

// A formula between marks of TeX is shown as it was written: its backslashes, stars and underscores are no marks of
// Markdown. Without an empty line, and not too long, so that one that is not closed is not looked for far away.
const FORMULA = /^ {0,3}(?:\\\[(?:(?!\n[ \t]*\n)[^]){1,2000}?\\\]|\$\$(?:(?!\n[ \t]*\n)[^]){1,2000}?\$\$)[ \t]*(?:\n|$)/;
const INNER_FORMULA = /^(?:\\\[[^]{1,500}?\\\](?!\()|\\\([^]{1,500}?\\\))/;
const written = (form, type) => (text) => {
  const found = form.exec(text);
  return found ? { type, raw: found[0] } : undefined;
};

// A definition of a link is shown as it was written: the library has no token for it, and places are those of tokens.
marked.use({
  extensions: [
    { name: "formula", level: "block", tokenizer: written(FORMULA, "formula"),
      start: (text) => text.search(/\n {0,3}(?:\\\[|\$\$)/) + 1 || undefined },
    { name: "inner formula", level: "inline", tokenizer: written(INNER_FORMULA, "literal") },
  ],
  tokenizer: {
    def() {},
    emStrong: (_, whole) => isCrowded(whole) ? undefined : false,  // false: as the library does
  },
});

// The blocks of a text. What the library gives up on, such as quotes in quotes a thousand deep, is one of plain text.
function read(text) {
  const whole = `${withoutTabs(text)}\n`;  // without the line feed an open fence is none to it
  try {
    return marked.lexer(whole);
  } catch {
    return [{ type: "plain", raw: whole }];
  }
}

// marked reads a tab at the beginning of a line as four spaces; so do we, so as to know where a token stands.
const withoutTabs = (text) => text.replace(/\r/g, " ")
  .replace(/^( *)(\t+)/gm, (_, spaces, tabs) => spaces + "    ".repeat(tabs.length));

// How many units of a text became so many without tabs.
function lengthBefore(text, length) {
  if (!text.includes("\t")) return Math.min(length, text.length);
  let at = 0, isLead = true, hadTab = false;
  for (let read = 0; read < length && at < text.length; at++) {
    const c = text[at], isTab = c === "\t" && isLead;
    read += isTab ? 4 : 1;
    hadTab = c === "\n" ? false : hadTab || isTab;
    isLead = c === "\n" || (isLead && (isTab || (c === " " && !hadTab)));
  }
  return at;
}
