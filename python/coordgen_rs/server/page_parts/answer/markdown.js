// Markdown as elements: marked reads it, and its tokens become elements of a few kinds. Nothing is ever parsed
// as HTML, so what a model writes is text, links to other places, and nothing else. Words keep their tints.

const LINKS = /^(https?:|mailto:)/i;
const FENCE = /^ {0,3}(`{3,}|~{3,})[^\n]*\n?/;
const WINDOW = 512;  // characters of syntax that may stand between two words
const LINES = 40;  // of code that are laid out together
const DEEPEST = 16;  // lists in quotes in lists; what is deeper is shown as it was written

// What a token became: where its nodes begin among its parent's, the element that its parts are in, and its parts.
class Piece {
  constructor(token, parent, maker) {
    [this.token, this.start, this.body, this.parts] = [token, parent.childNodes.length, null, []];
    [this.from, this.outlineBefore] = [maker.place, maker.outline];
  }

  ends(maker) { [this.to, this.outline] = [maker.place, maker.outline]; }
}

// Makes elements of tokens, from a place of the content on.
class Maker {
  constructor(content, runs, place, outline) {
    [this.content, this.runs, this.place, this.outline, this.depth] = [content, runs, place, outline, 0];
  }

  // Have a parent hold what tokens say. Pieces before the first that differs stay, and that one grows if it can.
  fill(parent, tokens, pieces = []) {
    let number = 0;
    while (pieces[number] && tokens[number] && isSame(pieces[number].token, tokens[number])) number++;
    const kept = pieces.slice(0, number), differs = pieces[number];
    if (number) [this.place, this.outline] = [kept.at(-1).to, kept.at(-1).outline];
    if (pieces[number + 1]) cut(parent, pieces[number + 1].start);
    if (differs && tokens[number] && this.grown(parent, differs, tokens[number])) kept.push(differs);
    else if (differs) cut(parent, differs.start);
    for (const token of tokens.slice(kept.length)) kept.push(this.made(parent, token));
    return kept;
  }

  made(parent, token) {
    const piece = new Piece(token, parent, this);
    this.place = token.from ?? this.place;
    const isText = token.type === "text" && !token.tokens;
    if (isText || token.type === "literal" || this.depth === DEEPEST) {
      piece.place = this.said(parent, token.raw, !isText);
    } else {
      piece.body = this.bodyOf(parent, token);
      if (piece.body) this.parts(piece, token);
    }
    piece.ends(this);
    return piece;
  }

  parts(piece, token) {
    this.depth += 1;
    piece.parts = this.fill(piece.body, this.partsOf(token, piece.body), piece.parts);
    this.depth -= 1;
  }

  // Whether a piece could become what a longer token says.
  grown(parent, piece, token) {
    if (shellOf(piece.token) !== shellOf(token)) return false;
    [this.place, this.outline] = [token.from ?? piece.from, piece.outlineBefore];
    if (piece.body) {
      if (token.type === "heading") this.level(token);
      this.parts(piece, token);
    } else if (!this.wentOn(parent, piece, token)) return false;
    piece.token = token;
    piece.ends(this);
    return true;
  }

  // Append to a text what came behind it.
  wentOn(parent, piece, { raw, type }) {
    const before = piece.token.raw, { place } = piece;
    if (place == null || !raw.startsWith(before) || !this.content.startsWith(raw, place)) return false;
    if (type === "text" && raw.includes("&", before.length - 33)) return false;  // perhaps half a character reference
    this.runs.append(parent, raw.slice(before.length), place + before.length);
    this.place = place + raw.length;
    return true;
  }

  // Append the element of a token; what its parts are in.
  bodyOf(parent, token) {
    const put = (tag, className) => parent.appendChild(made(tag, className));
    switch (token.type) {
      case "space": return null;
      case "hr": return void put("hr");
      case "heading": return put(`h${this.level(token)}`);
      case "text": return put("div");
      case "list": return this.list(parent, token);
      case "list_item": return this.item(parent, token);
      case "table": return this.table(parent, token);
      case "row": return put("tr");
      case "cell": return put(token.tag, token.align && `align-${token.align}`);
      case "code": return code(parent, token);
      case "lines": return put("span", "lines");
      case "blockquote": case "strong": case "em": case "del": return put(token.type);
      case "codespan": return put("code");
      case "link": return link(parent, token);
      case "escape": case "br": case "image": case "inline": return put("span");
      default: return put("p");
    }
  }

  // What a token is made of: tokens again, and texts.
  partsOf(token, body) {
    const literal = (raw) => [{ type: "literal", raw }];
    switch (token.type) {
      case "list": return token.items;
      case "list_item": case "blockquote": return token.tokens;
      case "table": return token.rows.map((cells) => rowOf(cells, "td", token.align));
      case "row": return token.cells;
      case "code": return linesOf(body.written = this.codeOf(token));
      case "codespan": return literal(inTicks(token));
      case "escape": return literal(token.raw.slice(1));
      case "br": return literal("\n");
      case "link": return addressOf(token) ? token.tokens.map(inlined) : literal(token.raw);
      case "lines": return literal(token.raw);
      default: return token.tokens?.map(inlined) ?? literal(token.raw.trimEnd());  // HTML, and images: nothing is fetched
    }
  }

  // Headings stand below each other without a gap, whatever marks were taken: `##` first, or `#` and then `###`.
  level({ depth }) {
    this.outline = [...this.outline.filter((it) => it < depth), depth];
    return Math.min(2 + this.outline.length, 6);
  }

  list(parent, token) {
    const list = parent.appendChild(made(token.ordered ? "ol" : "ul"));
    if (token.ordered && token.start !== 1) list.start = token.start;
    return list;
  }

  item(parent, token) {
    const item = parent.appendChild(made("li"));
    if (token.task) item.append(made("span", "task", token.checked ? "\u2611 " : "\u2610 "));
    return item;
  }

  table(parent, token) {
    const scroll = parent.appendChild(made("div", "scroll")), table = scroll.appendChild(made("table"));
    scroll.tabIndex = 0;
    this.fill(table.createTHead(), [rowOf(token.header, "th", token.align)]);
    return table.createTBody();
  }

  // The code as it was written, with its tabs; within lists and quotes as marked has it.
  codeOf(token) {
    const raw = this.content.slice(this.place, token.to ?? this.place), fence = FENCE.exec(raw);
    if (!fence || withoutTabs(raw).trim() !== token.raw.trim()) return token.text;
    this.place += fence[0].length;
    const mark = fence[1], lines = raw.slice(fence[0].length).trimEnd().split("\n");
    const closing = lines.at(-1).trim();
    if (closing.startsWith(mark) && closing === mark[0].repeat(closing.length)) lines.pop();
    return lines.join("\n");
  }

  // Append a text, tinted by where it is found in the content; that place.
  said(parent, text, isLiteral) {
    const near = this.content.slice(this.place, this.place + text.length + WINDOW).indexOf(text);
    const place = near < 0 ? null : this.place + near;
    if (place !== null) this.place = place + text.length;
    if (isLiteral || !text.includes("&")) this.runs.append(parent, text, place);
    else if (place === null) parent.append(shown(unescaped(text)));
    else {
      let from = 0;
      for (const part of text.split(REFERENCES)) {
        const character = unescaped(part);
        if (character === part) this.runs.append(parent, part, place + from);
        else parent.append(shown(character));
        from += part.length;
      }
    }
    return place;
  }
}

function cut(parent, start) { while (parent.childNodes.length > start) parent.lastChild.remove(); }

// What has to be the same for a token's element to stay while its parts grow.
const shellOf = (token) => [token.type, !token.tokens, token.depth, token.ordered, token.start, token.loose, token.task,
  token.checked, token.lang, token.href, token.tag, token.align, token.header?.map((it) => it.text).join("|")].join("\n");

const isSame = (a, b) => a.raw === b.raw && a.from === b.from && shellOf(a) === shellOf(b);

// marked has tokens for HTML between words; their text stands there as it was written.
const inlined = (token) => token.type === "html" ? { type: "literal", raw: token.raw } : token;

function rowOf(cells, tag, align) {
  const found = cells.map(({ text, tokens }, column) => ({ type: "cell", raw: text, tokens, tag, align: align[column] }));
  return { type: "row", raw: found.map((it) => it.raw).join("|"), cells: found };
}

// Code in parts, so that one that grows is not laid out again from its first line.
function linesOf(text) {
  const lines = text.split("\n"), found = [];
  for (let at = 0; at < lines.length; at += LINES) {
    const end = at + LINES < lines.length ? "\n" : "";
    found.push({ type: "lines", raw: lines.slice(at, at + LINES).join("\n") + end });
  }
  return found;
}

function inTicks({ raw }) {
  const ticks = /^`+/.exec(raw)[0].length, text = raw.slice(ticks, -ticks);
  return /^ .* $/s.test(text) && text.trim() ? text.slice(1, -1) : text;
}

function code(parent, token) {
  const block = parent.appendChild(made("div", "code")), head = block.appendChild(made("div", "code-head"));
  const pre = block.appendChild(made("pre")), code = pre.appendChild(made("code"));
  pre.tabIndex = 0;
  head.append(made("span", "", shown(token.lang || "code")),
    button("Copy", "Copy this code", (event) => copied(code.written, event.currentTarget)));
  return code;
}

// Where a link goes, if that is a place on the web or a mailbox. Character references are read first, as browsers do.
function addressOf({ href }) {
  const address = unescaped(href ?? "");
  return LINKS.test(address) ? address : null;
}

function link(parent, token) {
  const address = addressOf(token);
  if (!address) return parent.appendChild(made("span"));
  const link = parent.appendChild(made("a"));
  [link.href, link.target, link.rel, link.title] = [address, "_blank", "noopener noreferrer", shown(address)];
  return link;
}

const REFERENCES = /(&(?:#\d{1,7}|#x[\da-f]{1,6}|\w{2,31});)/i;
const entities = new DOMParser();

// Character references, one by one, so that there is never anything else to parse.
function unescaped(text) {
  return text.replace(/&(?:#\d{1,7}|#x[\da-f]{1,6}|\w{2,31});/gi,
    (it) => entities.parseFromString(it, "text/html").documentElement.textContent);
}
