// What an answer took, and what drafting saved over a dialogue.

// The figures of an answer, of what the server tells behind it. What plain decoding would have taken is the time
// that this answer took, by what its steps cost against one step a token, as they were measured when the bundle
// was tested on this machine.
function figuresOf(last, usage, rows, costs) {
  const { timings, coordgen: own } = last, tokens = usage.completion_tokens;
  const figures = { prompt: usage.prompt_tokens, reused: timings.cache_n, tokens, steps: own.num_steps,
    perSecond: timings.predicted_per_second, seconds: timings.predicted_ms / 1000, sources: own.token_sources };
  const ratio = costs?.[1] && rows.length ? plainOverDrafted(usage, rows, costs) : null;
  return ratio === null ? figures : { ...figures, plainSeconds: figures.seconds * ratio };
}

function plainOverDrafted(usage, rows, costs) {
  const middle = usage.prompt_tokens + usage.completion_tokens / 2;
  const cost = (width) => (costs[width] ?? costs[1]).base + (costs[width] ?? costs[1]).per_token * middle;
  return usage.completion_tokens * cost(1) / rows.reduce((sum, width) => sum + cost(width), 0);
}

// Those of an answer and of what was added to it.
function together(a, b) {
  if (!a) return b;
  const sources = { ...a.sources };
  for (const [source, count] of Object.entries(b.sources)) sources[source] = (sources[source] ?? 0) + count;
  const sum = (name) => a[name] + b[name];
  const found = { prompt: a.prompt, reused: a.reused, tokens: sum("tokens"), steps: sum("steps"), seconds: sum("seconds"), sources };
  found.perSecond = found.tokens / found.seconds;
  return a.plainSeconds && b.plainSeconds ? { ...found, plainSeconds: sum("plainSeconds") } : found;
}

const perStep = ({ tokens, steps }) => (tokens / steps).toFixed(2);

function lineOf(figures) {
  const plain = figures.plainSeconds ? ` (plain decoding: about ${(figures.tokens / figures.plainSeconds).toFixed(0)})` : "";
  const measured = figures.measured ? `; measured: plain decoding ${figures.measured.toFixed(0)} tokens/s and the same text, ` +
    `so drafts were ${(figures.perSecond / figures.measured).toFixed(2)} times as fast` : "";
  return `${counted(figures.tokens, "token")} in ${counted(figures.steps, "step")}, ${perStep(figures)} tokens per step, ` +
    `${figures.perSecond.toFixed(0)} tokens/s${plain}; prompt ${figures.prompt}, ${figures.reused} of them reused${measured}`;
}

// Over all answers of a dialogue, also those that another one took the place of.
function savedBy(messages) {
  const all = messages.map((it) => it.figures).filter((it) => it?.steps);
  if (!all.length) return "";
  const sum = (list, of) => list.reduce((total, it) => total + of(it), 0);
  const tokens = sum(all, (it) => it.tokens), steps = sum(all, (it) => it.steps), parts = [
    `This dialogue: ${counted(tokens, "token")} in ${counted(steps, "step")}, ${perStep({ tokens, steps })} a step.`];
  const reckoned = all.filter((it) => it.plainSeconds), seconds = sum(reckoned, (it) => it.seconds);
  const plain = sum(reckoned, (it) => it.plainSeconds);
  if (reckoned.length) {
    parts.push(`${seconds.toFixed(1)} s; plain decoding about ${plain.toFixed(1)} s by estimate ` +
      `(${(plain / seconds).toFixed(2)} times as long).`);
  }
  const measured = all.filter((it) => it.measured);
  if (measured.length) {
    const own = sum(measured, (it) => it.tokens / it.perSecond), other = sum(measured, (it) => it.tokens / it.measured);
    parts.push(`As measured in ${measured.length === 1 ? "one answer" : `${measured.length} answers`}: ` +
      `${own.toFixed(1)} s against ${other.toFixed(1)} s (${(other / own).toFixed(2)} times as long).`);
  }
  return parts.join(" ");
}
