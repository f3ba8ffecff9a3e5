// The strip below an answer: one column for each step, above the line what it gave, below what was drafted and
// rejected. Columns are of one height whatever a step gave, so that 300 of them can be read at once.

const IN_A_GROUP = 25;  // columns: a group that is full is never laid out again

class Steps {
  constructor(article) {
    this.strip = article.appendChild(made("div", "steps"));
    this.strip.setAttribute("role", "group");
    this.strip.setAttribute("aria-label", "Steps: arrow keys move, each shows its draft tree");
    this.strip.onkeydown = (event) => this.move(event);
    const drawn = ({ target }) => this.draw(this.columns.indexOf(target.closest(".step")));
    this.strip.addEventListener("focusin", drawn);
    this.strip.onclick = drawn;
    this.tree = article.appendChild(made("figure", "tree"));
    this.tree.hidden = true;
    this.columns = [];
    this.drawn = null;  // the column whose tree is shown
    this.trees = [];
    this.rows = [];
  }

  get count() { return this.columns.length; }

  add(spans, step) {
    if (!spans.length) return;
    const column = made("button", "step"), told = [], number = this.count + 1;
    const gave = column.appendChild(made("span", "gave")), rejected = column.appendChild(made("u"));
    column.type = "button";
    column.tabIndex = this.count ? -1 : 0;
    const numRejected = step ? step.drafted - step.accepted : 0;
    if (numRejected) rejected.style.setProperty("--rejected", Math.min(numRejected, 12));
    for (const [start, end, source] of spans) {
      for (let token = start; token < end; token++) gave.append(tinted(made("i"), source));
      told.push(`${end - start} from ${by(source)}`);
    }
    this.trees.push(step?.tree);
    if (step) this.rows.push(step.rows);
    const cost = step ? `; ${step.accepted} of ${counted(step.drafted, "drafted token")} accepted, ${numRejected} rejected, ` +
      `in ${counted(step.rows, "row")}` : "";
    column.title = `Step ${number}: ${told.join(", ")}${cost}`;
    if (this.count % IN_A_GROUP === 0) this.group = this.strip.appendChild(made("div", "group"));
    this.group.append(column);
    this.columns.push(column);
  }

  draw(number) {
    const column = this.columns[number];
    if (!column || column === this.drawn) return;
    for (const other of [this.columns[0], this.drawn]) if (other) other.tabIndex = -1;
    this.drawn?.classList.remove("shown");
    column.classList.add("shown");
    column.tabIndex = 0;
    this.drawn = column;
    this.tree.hidden = false;
    this.tree.replaceChildren(...treeOf(this.trees[number], number + 1));
  }

  move(event) {
    const at = this.columns.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: this.count - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    this.columns[Math.min(Math.max(to, 0), this.count - 1)].focus();
  }
}
