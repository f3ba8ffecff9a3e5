// What messages look like: a question, and an answer while it comes and afterwards.

function articleOf(role) {
  const article = made("article", role), who = role === "user" ? "You" : "Model";
  article.append(made("h2", "who", who));
  article.setAttribute("aria-label", who);
  return article;
}

// The buttons below a message; one that does nothing is not there.
function acts(article, buttons) {
  article.querySelector(":scope > .acts")?.remove();
  const row = article.appendChild(made("div", "acts"));
  row.append(...buttons.filter(Boolean));
  return row;
}

// Steps between messages of one place: an edited question, another answer.
function switchOf(message, what) {
  const all = siblingsOf(dialogue, message), at = all.indexOf(message);
  if (all.length < 2) return [];
  const to = (number, label, text) => {
    const element = button(text, label, () => chosen(all[number]));
    element.setAttribute("aria-label", label);
    element.disabled = Boolean(running) || !all[number];
    return element;
  };
  return [to(at - 1, `The ${what} before`, "\u2039"), made("span", "count", `${at + 1} of ${all.length}`),
    to(at + 1, `The next ${what}`, "\u203a")];
}

// Show the branch through a message from now on.
function chosen(message) {
  showThrough(dialogue, message);
  show();
  focusOn(message);
  done(kept.put(dialogue));
}

// A message of the user, with what can be done with it.
class Question {
  constructor(message) {
    this.message = message;
    this.article = articleOf("user");
    this.article.dataset.id = message.id;
    if (message.content) this.article.append(made("div", "said", shown(message.content)));
    for (const { name, text } of message.files) this.article.append(fileOf(name, text));
    this.refresh();
  }

  refresh() {
    const { message } = this;
    this.article.querySelector(":scope > .error")?.remove();
    if (message.error) this.article.append(made("div", "error", message.error));
    const isAnswered = siblingsOf(dialogue, { parent: message.id }).length > 0;
    acts(this.article, [
      !isAnswered && running?.question !== message && button(message.error ? "Send again" : "Send", "", () => answer(message)),
      button("Edit", "Change this message, and ask again", () => this.edit()),
      message.content && button("Copy", "Copy this message", (event) => copied(message.content, event.currentTarget)),
      ...switchOf(message, "message"),
    ]);
  }

  edit() {
    if (running) return;
    const { message, article } = this, form = made("form", "edit"), area = made("textarea"), row = made("div", "row");
    area.value = message.content;
    area.setAttribute("aria-label", "The message, as it is to be");
    const cancel = () => { form.remove(); article.classList.remove("edited"); article.querySelector(".acts button").focus(); };
    const send = made("button", "main", "Ask");
    row.append(button("Cancel", "", cancel), send);
    form.append(area, row);
    form.onsubmit = (event) => {
      event.preventDefault();
      const text = area.value.trim();
      if ((!text && !message.files.length) || running) return;
      form.remove();
      article.classList.remove("edited");
      ask(text, message.files, message.parent);
    };
    area.onkeydown = (event) => {
      if (event.key === "Escape") { event.stopPropagation(); cancel(); }
      else if (sends(event)) { event.preventDefault(); form.requestSubmit(); }
    };
    article.querySelector(":scope > form")?.remove();
    article.classList.add("edited");
    article.append(form);
    area.focus();
  }
}

// A file that goes with a message: its name, and its text behind it.
function fileOf(name, text) {
  const file = made("details", "file"), content = made("pre", "", shown(text.slice(0, 20_000)));
  content.tabIndex = 0;
  file.append(made("summary", "", `${shown(name)}, ${counted(text.length, "character")}`), content);
  return file;
}

// A message of the model.
class Answer {
  constructor(message) {
    this.message = message;
    this.article = articleOf("assistant");
    this.article.dataset.id = message.id;
    this.said = made("div", "said");
    this.runs = new Runs(message.spans, message.content);
    this.rendered = new Rendered(this.said, this.runs);
    this.spans = message.spans ?? [];
    this.sources = [];  // of characters that are in no text yet
    this.told = made("div", "told");
    this.article.append(this.said);
    if (message.thinking) this.think();
    this.steps = new Steps(this.article);
    this.article.append(this.told);
  }

  // As it was kept.
  whole() {
    this.rendered.update(this.message.content);
    this.refresh();
    return this;
  }

  // What the model thinks is folded away; it stays open for who opens it.
  think() {
    if (!this.thoughts) {
      this.thoughts = made("details", "thinking");
      this.thoughts.append(made("summary", "", "Thinking"), made("div", "thought"));
      this.article.querySelector(".who").after(this.thoughts);
      this.numThought = 0;
    }
    const thought = this.thoughts.lastChild;
    thought.append(shown(this.message.thinking.slice(this.numThought)));
    this.numThought = this.message.thinking.length;
  }

  // What a step adds. Sources are told for all characters, those of marks and of thinking among them.
  step({ content = "", reasoning_content: thought = "" }, own) {
    const characters = Array.from(content).length;
    for (const [start, end, source] of own?.spans ?? []) {
      for (let at = start; at < end; at++) this.sources.push(source);
    }
    if (thought) this.message.thinking += thought;
    if (content) {
      const title = (source) => `${by(source)}, step ${this.steps.count + 1}`;
      const missing = characters - this.sources.length;
      const sources = missing > 0 ? [...Array(missing).fill("target"), ...this.sources] : this.sources.slice(-characters);
      this.add(content, sources, title);
    }
    if (content || thought) this.sources = [];
    this.steps.add(own?.token_spans ?? [], own?.step);
    this.later();
  }

  // Append a text, with the source of each of its characters.
  add(content, sources, title) {
    let units = this.message.content.length, at = 0, count = this.spans.at(-1)?.[1] ?? 0;
    for (const character of content) {
      const source = sources[at++], last = this.spans.at(-1);
      units += character.length;
      count += 1;
      if (last?.[2] === source && at > 1) {
        last[1] = count;
        this.runs.all.at(-1).end = units;
      } else {
        this.spans.push([count - 1, count, source]);
        this.runs.add(units, source, title(source));
      }
    }
    this.message.content += content;
  }

  // The screen is written once a frame, however many steps came.
  later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = null;
      this.draw();
    });
  }

  draw() {
    if (this.message.thinking) this.think();
    this.rendered.update(this.message.content);
    keepInView();
  }

  // What it took, and what can be done with it.
  refresh() {
    this.said.classList.remove("waiting");
    this.message.spans = this.spans.length ? this.spans : null;
    const { figures, state, error, content } = this.message;
    this.told.replaceChildren();
    if (figures) this.told.append(legendOf(figures), made("div", "figures", lineOf(figures)));
    if (state === "stopped") this.told.append(made("div", "figures", "stopped"));
    if (state === "cut") this.told.append(made("div", "figures", "cut by the limit of tokens"));
    if (error) this.told.append(made("div", "error", error));
    const goesOn = content && (state === "cut" || state === "stopped") && tokens.has(this.message.id);
    acts(this.article, [
      content && button("Copy", "Copy this answer as Markdown", (event) => copied(content, event.currentTarget)),
      goesOn && button("Continue", "Go on where the answer was cut", () => goOn(this)),
      button("Another answer", "Ask the same again, and keep this answer", () => another(this.message)),
      figures && bodies.has(this.message.id) && !partial.has(this.message.id) && !figures.measured && button("Compare with plain decoding",
        "Ask the same without drafts, and measure that", (event) => compare(this, event.currentTarget)),
      ...switchOf(this.message, "answer"),
      siblingsOf(dialogue, this.message).length > 1 &&
        button("Side by side", "All answers of this question beside each other", () => beside(this.message)),
    ]);
  }
}

function legendOf(figures) {
  const legend = made("ul", "legend");
  for (const [source, count] of Object.entries(figures.sources).sort((a, b) => b[1] - a[1])) {
    const item = legend.appendChild(made("li"));
    item.dataset.source = source;
    item.dataset.count = count;
    item.append(tinted(made("span", "swatch"), source), `${by(source)} `, made("b", "", count));
  }
  return legend;
}

// All answers of a question in columns; one of them is gone on with.
function beside(message) {
  const row = made("div", "beside");
  row.tabIndex = 0;
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", "Answers side by side");
  siblingsOf(dialogue, message).forEach((it, number) => {
    const view = new Answer(it).whole();
    view.article.querySelector(".who").textContent = `Answer ${number + 1}`;
    acts(view.article, [
      button("Go on with this one", "", () => chosen(it)),
      button("Copy", "Copy this answer as Markdown", (event) => copied(it.content, event.currentTarget)),
    ]);
    row.append(view.article);
  });
  const shownNow = document.querySelector(`article[data-id="${message.id}"]`);
  while (shownNow.nextSibling) shownNow.nextSibling.remove();
  shownNow.replaceWith(row);
  row.focus();
}
