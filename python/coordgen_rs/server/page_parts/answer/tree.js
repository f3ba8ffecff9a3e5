// The draft tree of a step, drawn: the root at the left, drafted tokens to the right of what they follow.
// Full boxes were accepted, dashed ones rejected; the model's own token stands at the end of the path.

const SVG = document.querySelector("svg").namespaceURI;
const LETTER = 7.3, BOX = 24, ROW = 32, GAP = 26, LONGEST = 16;

function drawn(name, attributes, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// A token with its spaces to be seen.
function label(text) {
  const seen = shown(text).replace(/\n/g, "\u23ce").replace(/\t/g, "\u21e5").replace(/ /g, "\u2423");
  const letters = Array.from(seen);
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST - 1).join("")}\u2026` : seen;
}

// What the drawing and its caption show: the nodes of the tree, and the model's own token behind them.
function nodesOf(tree) {
  const accepted = new Set(tree.accepted);
  const nodes = tree.texts.map((text, number) => ({
    text, number, parent: number ? tree.parents[number] : null, source: tree.sources[number],
    kind: number === 0 ? "root" : accepted.has(number) ? "accepted" : "rejected",
  }));
  if (tree.target) {
    const parent = tree.accepted.at(-1) ?? 0;
    nodes.push({ text: tree.target.text, number: nodes.length, parent, source: "target", kind: "own" });
  }
  return nodes;
}

// Places: a column for each depth, a row for each leaf, the path that was taken first.
function placed(nodes) {
  const children = nodes.map(() => []), order = { accepted: 0, own: 0, rejected: 1 };
  for (const node of nodes) if (node.parent !== null) children[node.parent].push(node);
  for (const list of children) list.sort((a, b) => order[a.kind] - order[b.kind]);
  const widths = [];
  let row = 0;
  const place = (node, depth) => {
    node.depth = depth;
    node.label = label(node.text);
    node.width = Array.from(node.label).length * LETTER + 14;
    widths[depth] = Math.max(widths[depth] ?? 0, node.width);
    node.row = row;
    children[node.number].forEach((child, index) => {
      if (index) row += 1;
      place(child, depth + 1);
    });
  };
  place(nodes[0], 0);
  const starts = [2];
  widths.forEach((width, depth) => starts.push(starts[depth] + width + GAP));
  for (const node of nodes) [node.x, node.y] = [starts[node.depth], node.row * ROW + 2];
  return { width: starts.at(-1) - GAP + 2, height: row * ROW + BOX + 4 };
}

function treeOf(tree, number) {
  if (!tree) return [made("figcaption", "", `Step ${number}: nothing was drafted, the model alone spoke.`)];
  const nodes = nodesOf(tree), size = placed(nodes), caption = captionOf(nodes, number);
  const picture = drawn("svg", { width: size.width, height: size.height, role: "img", "aria-label": caption });
  for (const node of nodes) {
    if (node.parent === null) continue;
    const from = nodes[node.parent], x = from.x + from.width, y = from.y + BOX / 2, end = node.y + BOX / 2;
    const bend = (node.x - x) / 2, path = `M${x} ${y}C${x + bend} ${y} ${node.x - bend} ${end} ${node.x} ${end}`;
    picture.append(drawn("path", { d: path, class: `edge ${node.kind}` }));
  }
  for (const node of nodes) {
    const group = tinted(drawn("g", { class: `node ${node.kind}` }), node.source);
    const box = { x: node.x, y: node.y, width: node.width, height: BOX, rx: 6 };
    group.append(drawn("title", {}, node.kind === "root" ? "the last token before the step"
      : `${node.kind === "own" ? "chosen" : node.kind}: ${by(node.source)}`));
    group.append(drawn("rect", box));
    group.append(drawn("text", { x: node.x + 7, y: node.y + 16.5 }, node.label));
    picture.append(group);
  }
  const scroll = made("div", "scroll");
  scroll.tabIndex = 0;
  scroll.append(picture);
  return [made("figcaption", "", caption), scroll];
}

function captionOf(nodes, number) {
  const named = (kind) => nodes.filter((node) => node.kind === kind);
  const accepted = named("accepted"), rejected = named("rejected"), [own] = named("own");
  const quoted = (list) => JSON.stringify(list.map((node) => node.text).join(""));
  const parts = [`Step ${number}: ${counted(accepted.length + rejected.length, "drafted token")}`];
  if (accepted.length) parts.push(`accepted ${quoted(accepted)}`);
  if (rejected.length) parts.push(`rejected ${rejected.length}`);
  if (own) parts.push(`the model itself chose ${quoted([own])}`);
  return `${parts.join("; ")}.`;
}

