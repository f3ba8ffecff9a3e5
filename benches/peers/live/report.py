"""What a live comparison found: a document, which `schema.json` describes, and its tables.

In: for each number of threads a `Run`. Out: JSON types, and text. Figures are computed here once,
and tables show nothing that the document lacks.
"""

import sys
from importlib import metadata
from pathlib import Path

from coordgen_rs.lab.bench.condition import commit_of
from coordgen_rs.loading.profile import machine_facts
from live.figures import ALL, MEASURES, Figures
from live.prompts import facts_of
from support.tables import show_rows

SCHEMA_VERSION = 2
_UNITS = {
    "prefill": ("reading the prompt, tokens/s", 0),
    "decode": ("decoding, tokens/s", 1),
    "answer": ("whole answers, new tokens/s, prompt included", 1),
    "tokens_per_step": ("tokens per step", 2),
}
_IN_SHORT = {"": "{name}"} | {
    f"{head}": f"{{rates[{measure}][all][0]:.{digits}f}}"
    for head, measure, digits in (
        ("reading the prompt, tokens/s", "prefill", 0),
        ("decoding, tokens/s", "decode", 1),
        ("tokens per step", "tokens_per_step", 2),
        ("whole answers, tokens/s", "answer", 1),
    )
}


def head(version, weights, prompts, options):
    """What every comparison of engines says of itself: where, of what, and how it was asked.

    Args:
        version: Of the document's schema.
        weights: `Weights` of the model.
        prompts: `Prompt`s by task.
        options: In JSON types.
    """
    return {
        "schema_version": version,
        "machine": machine_facts(),
        "software": {
            "coordgen_rs": metadata.version("coordgen-rs"),
            "python": sys.version.split()[0],
        },
        "commit": commit_of(Path(__file__)),
        "model": {"name": weights.gguf.name, "sha256": weights.sha256},
        "options": options,
        "prompts": facts_of(prompts),
    }


def run_document(run, prompts, reading=()):
    """The figures of a run as JSON types; `reading` as `reading_rows` gives it."""
    figures = Figures(run.contest, prompts)
    rows = {row.name: row for row in run.rows if row.name in figures.names}
    # Left out for every row: else each would be timed on prompts of its own.
    skip = set().union(*figures.looping.values())
    return {
        "threads": run.threads,
        "rows": [_row(figures, row, rows, run.facts[row.name], skip) for row in rows.values()],
        "comparisons": [
            _comparison(figures, kind, name, other, skip)
            for kind, name, other in _pairs(figures, rows)
        ],
        "reading": list(reading),
        "failures": run.failures,
        "answers": _answers(figures, run.contest, prompts),
    }


def reading_rows(run, prompts):
    """How fast prompts of some lengths are read, as JSON types: a row for each engine."""
    figures = Figures(run.contest, prompts)
    return [
        {
            "name": row.name,
            "facts": run.facts[row.name],
            "rates": {length: figures.rates(row.name, "prefill")[length] for length in prompts},
        }
        for row in run.rows
        if row.name in figures.names
    ]


def _row(figures, row, rows, facts, skip):
    own_plain = _plain_of(row, rows)
    return row._asdict() | {
        "facts": facts,
        "num_looping": len(figures.looping[row.name]),
        "num_unlike_plain": None if own_plain is None else figures.num_unlike(row.name, own_plain),
        "rates": {measure: figures.rates(row.name, measure) for measure in MEASURES},
        "rates_without_loops": {
            measure: figures.rates(row.name, measure, skip) for measure in MEASURES
        },
    }


def _plain_of(row, rows):
    """The plain row of the same weights in the same engine; None where there is none."""
    of_it = [other for other in rows.values() if other[2:] == (row.engine, row.weights, False)]
    return of_it[0].name if of_it and row.drafts else None


def _pairs(figures, rows):
    """Which rows are compared, and why."""
    for row in rows.values():
        if plain := _plain_of(row, rows):
            yield "own plain", row.name, plain
    peers = [row for row in rows.values() if row.engine != "coordgen"]
    plain_peers = [row.name for row in peers if not row.drafts]
    best_drafting = _best(figures, [row for row in peers if row.drafts])
    best = _best(figures, peers)
    for row in rows.values():
        if row.engine != "coordgen":
            continue
        chosen = {"drafting": best_drafting, "best": best} if row.drafts else {"plain": plain_peers}
        for kind, others in chosen.items():
            for other in others:
                yield kind, row.name, other


def _best(figures, rows):
    """The names of the rows that decode fastest, one for each engine and weights."""
    best = {}
    for row in rows:
        speed = figures.rates(row.name, "decode")[ALL]
        place = row.engine, row.weights
        if speed is not None and (place not in best or speed > best[place][0]):
            best[place] = speed, row.name
    return [name for _, name in best.values()]


def _comparison(figures, kind, name, other, skip):
    return {
        "kind": kind,
        "name": name,
        "other": other,
        "num_looping": len(skip),
        "ratios": {m: figures.ratios(name, other, m) for m in MEASURES},
        "ratios_without_loops": {m: figures.ratios(name, other, m, skip) for m in MEASURES},
    }


def _answers(figures, contest, prompts):
    """Every answer: times of each round, tokens of the first."""
    return [
        {
            "name": name,
            "task": task,
            "prompt": prompt.id,
            "prompt_len": len(prompt.token_ids),
            "loops": (task, index) in figures.looping[name],
            "tokens": answers[0].tokens,
            "rounds": [
                {
                    "new_tokens": len(answer.tokens),
                    "decoded": answer.decoded,
                    "steps": answer.steps,
                    "prompt_s": answer.prompt_s,
                    "decode_s": answer.decode_s,
                }
                for answer in answers
            ],
        }
        for name, by_task in contest.answers.items()
        for task, of_task in by_task.items()
        for index, (prompt, answers) in enumerate(zip(prompts[task], of_task, strict=True))
    ]


def show(run, num_prompts):
    """Print a run's tables, and what failed.

    Args:
        run: As `run_document` gives it.
        num_prompts: Prompts in all.
    """
    threads, rows = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}", run["rows"]
    best = {of["other"] for of in run["comparisons"] if of["kind"] == "drafting"}
    in_short = [
        row
        for row in rows
        if row["engine"] == "coordgen" or not row["drafts"] or row["name"] in best
    ]
    show_rows(f"in short, all tasks, {threads}", in_short, _IN_SHORT)
    for measure, (title, digits) in _UNITS.items():
        _show_rates(f"{title}, {threads}", rows, "rates", measure, digits)
    num_left = num_prompts - len(
        {(of["task"], of["prompt"]) for of in run["answers"] if of["loops"]}
    )
    if 0 < num_left < num_prompts:
        on = f"the {num_left} of {num_prompts} prompts on which no answer loops"
        _show_rates(
            f"decoding, tokens/s, {on}, {threads}", rows, "rates_without_loops", "decode", 1
        )
    counts = {
        "": "{name}",
        "answers": str(num_prompts),
        "that loop": "{num_looping}",
        "unlike its own plain decoding": "{num_unlike_plain}",
    }
    show_rows(f"answers, {threads}", rows, counts)
    for kind, title in (
        ("own plain", "decoding with drafts, plain of the same engine and weights = 1"),
        ("plain", "plain decoding, another engine's plain = 1"),
        ("drafting", "decoding with drafts, another engine's best drafting = 1"),
        ("best", "decoding with drafts, another engine's best, with drafts or without = 1"),
    ):
        _show_comparisons(f"{title}, {threads}", run["comparisons"], kind)
    if run["reading"]:
        lengths = run["reading"][0]["rates"]
        columns = {length: f"{{rates[{length}][0]:.0f}}" for length in lengths}
        title = f"prompt speed, tokens/s, {threads}"
        show_rows(title, run["reading"], {"": "{name}"} | columns)
    abouts = [row["facts"].get("about") for row in [*rows, *run["reading"]]]
    for about in dict.fromkeys(filter(None, abouts)):
        print(f"Peer: {about}\n")
    for name, why in run["failures"].items():
        print(f"failed: {name}: {why}")


def _show_rates(title, rows, which, measure, digits):
    if rows:
        columns = _columns([row[which][measure] for row in rows], f"{which}[{measure}]", digits)
        show_rows(title, rows, {"": "{name}"} | columns)


def _show_comparisons(title, comparisons, kind):
    if chosen := [comparison for comparison in comparisons if comparison["kind"] == kind]:
        columns = _columns([of["ratios"]["decode"] for of in chosen], "ratios[decode]", 2)
        words = {"": "{name}", "beside": "{other}"}
        whole = {"whole answers": "{ratios[answer][all][0]:.2f}"}
        show_rows(title, chosen, words | columns | whole, num_words=2)


def _columns(figures, place, digits):
    """Medians by group, over all last, and there the range, unless all are of one round."""
    groups = [*(group for group in figures[0] if group != ALL), ALL]
    columns = {group: f"{{{place}[{group}][0]:.{digits}f}}" for group in groups}
    if any(of[ALL] is not None and of[ALL][1] != of[ALL][2] for of in figures):
        ends = (f"{{{place}[{ALL}][{end}]:.{digits}f}}" for end in (1, 2))
        columns["lowest..highest"] = "..".join(ends)
    return columns
