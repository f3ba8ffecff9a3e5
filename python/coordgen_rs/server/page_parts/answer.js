// What one answer looks like while it comes, and afterwards.
class Answer {
  constructor() {
    this.article = added("assistant");
    this.said = this.article.appendChild(made("div", "said waiting"));
    this.steps = this.article.appendChild(made("div", "steps"));
    this.steps.setAttribute("role", "group");
    this.steps.setAttribute("aria-label", "Steps: arrow keys move, each shows its draft tree");
    this.steps.onkeydown = (event) => this.move(event);
    this.tree = this.article.appendChild(made("figure", "tree"));
    this.tree.hidden = true;
    this.text = this.ended = "";
    this.numChars = this.numSteps = 0;
    this.rows = [];
  }

  step(text, own) {
    const characters = Array.from(text), base = this.numChars;
    for (const [start, end, source] of own?.spans ?? []) {
      const part = shown(characters.slice(start - base, end - base).join(""));
      const span = tinted(made("span", "", part), source);
      span.dataset.source = source;
      span.title = `${by(source)}, step ${this.numSteps + 1}`;
      this.said.append(span);
    }
    this.text += text;
    this.numChars += characters.length;
    this.strip(own?.token_spans ?? [], own?.step);
  }

  // One column: up, what the step gave; down, what was drafted and rejected.
  strip(spans, step) {
    if (!spans.length) return;
    const column = made("button", "step"), told = [];
    column.type = "button";
    column.tabIndex = this.numSteps ? -1 : 0;
    const rejected = made("u"), numRejected = step ? step.drafted - step.accepted : 0;
    rejected.style.setProperty("--rejected", Math.min(numRejected, 10));
    column.append(rejected);
    for (const [start, end, source] of spans) {
      for (let token = start; token < end; token++) column.append(tinted(made("i"), source));
      told.push(`${end - start} from ${by(source)}`);
    }
    this.numSteps += 1;
    if (step) this.rows.push(step.rows);
    const cost = step ? `; ${step.accepted} of ${step.drafted} drafted tokens accepted in ${step.rows} rows` : "";
    column.title = `Step ${this.numSteps}: ${told.join(", ")}${cost}`;
    column.setAttribute("aria-label", column.title);
    const number = this.numSteps;
    column.onfocus = column.onclick = () => this.draw(column, number, step);
    this.steps.append(column);
  }

  draw(column, number, step) {
    for (const other of this.steps.children) {
      other.tabIndex = other === column ? 0 : -1;
      other.classList.toggle("shown", other === column);
    }
    this.tree.hidden = false;
    this.tree.replaceChildren(...treeOf(step?.tree, number));
  }

  move(event) {
    const columns = [...this.steps.children], at = columns.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: columns.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    columns[Math.min(Math.max(to, 0), columns.length - 1)].focus();
  }

  figures(last, usage) {
    const counts = Object.entries(last.coordgen.token_sources).sort((a, b) => b[1] - a[1]);
    const legend = made("ul", "legend");
    for (const [source, count] of counts) {
      const item = made("li");
      item.dataset.source = source;
      item.dataset.count = count;
      item.append(tinted(made("span", "swatch"), source), `${by(source)} `, made("b", "", count));
      legend.append(item);
    }
    const { timings } = last, own = last.coordgen;
    const line = `${usage.completion_tokens} tokens in ${own.num_steps} steps, ` +
      `${own.tokens_per_step.toFixed(2)} tokens per step, ` +
      `${timings.predicted_per_second.toFixed(0)} tokens/s${this.estimate(usage, timings.predicted_per_second)}; ` +
      `prompt ${usage.prompt_tokens}, ${timings.cache_n} of them reused`;
    const cut = ["stop", "grammar"].includes(own.finish_reason) ? "" : ` (cut: ${own.finish_reason})`;
    this.told = made("div", "figures", line + cut);
    this.article.append(legend, this.told);
    return this.told;
  }

  // What plain decoding would do: the time that this answer took, by what its steps cost, each against
  // one step a token, as they were measured when the bundle was tested on this machine.
  estimate(usage, perSecond) {
    if (!stepCosts?.[1] || !this.rows.length) return "";
    const middle = usage.prompt_tokens + usage.completion_tokens / 2;
    const cost = (rows) => (stepCosts[rows] ?? stepCosts[1]).base + (stepCosts[rows] ?? stepCosts[1]).per_token * middle;
    const taken = this.rows.reduce((sum, rows) => sum + cost(rows), 0);
    const plain = perSecond * taken / (usage.completion_tokens * cost(1));
    return ` (plain decoding: about ${plain.toFixed(0)})`;
  }

  stopped() {
    this.ended = "Stopped.";
    this.article.append(made("div", "figures", "stopped"));
  }

  fail(error) {
    this.ended = `Error: ${error.message}`;
    this.article.append(made("div", "error", error.message));
  }
}

