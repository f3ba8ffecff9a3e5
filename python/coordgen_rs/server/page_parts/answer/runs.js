// Which source each part of a text is from, and words that are tinted by it.

// Places are UTF-16 units, as JavaScript counts.
class Runs {
  constructor(spans, content) {
    this.all = [];
    let at = 0, characters = 0;
    for (const [start, end, source] of spans ?? []) {
      const from = at + unitsOf(content, at, start - characters), to = from + unitsOf(content, from, end - start);
      this.add(to, source);
      [at, characters] = [to, end];
    }
  }

  add(end, source, title = by(source)) { this.all.push({ end, source, title }); }

  // The number of the run at a place.
  at(place) {
    let low = 0, high = this.all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.all[middle].end > place) high = middle; else low = middle + 1;
    }
    return low;
  }

  // Append a text that stands at a place, one element for each run.
  append(parent, text, place) {
    if (place === null || !this.all.length) return void parent.append(shown(text));
    for (let from = 0, number = this.at(place); from < text.length; number++) {
      const run = this.all[number], to = run ? Math.min(run.end - place, text.length) : text.length;
      const part = shown(text.slice(from, to));
      if (!run) parent.append(part);
      else {
        const span = made("span", "", part);
        if (part.trim()) tinted(span, run.source);  // no words, no tint: indented code would be a block of colour
        span.dataset.source = run.source;
        span.title = run.title;
        parent.append(span);
      }
      from = to;
    }
  }
}

// How many units so many characters have, from a place on.
function unitsOf(content, at, numCharacters) {
  let units = 0;
  for (let number = 0; number < numCharacters && at + units < content.length; number++) {
    units += content.codePointAt(at + units) > 0xffff ? 2 : 1;
  }
  return units;
}
