"""Tables of engines with our drafts, in Markdown.

In: contests of an engine's parts. Out: a document of its figures in JSON types, and what is printed
of it. It measures nothing.
"""

from live.adapted import OURS, SERVER_PLAIN
from live.kept import merged
from support.tables import show_rows

MEASURED, FREE = OURS


def document(engine, parts, asked, commit):
    """All figures of an engine."""
    contest = merged([contest for contest, _ in parts])
    tasks = list(next(iter(contest.answers.values())))
    found = {
        "engine": engine.name,
        "weights": engine.weights,
        "commit": commit,
        "asked": asked._asdict(),
        "prompts": {task: len(of) for task, of in next(iter(contest.answers.values())).items()},
        "facts": parts[0][1]["facts"],
        "rows": _rows(contest, tasks),
    }
    if asked.is_equality:
        found["reasons"] = [
            {"task": task, "name": name} | reason
            for part, told in parts
            for task in next(iter(part.answers.values()))
            for name, reason in told["reasons"].items()
        ]
    else:
        found["compared"] = compared(found["rows"], tasks)
    return found


def _rows(contest, tasks):
    plain = next(iter(contest.answers))
    groups = {task: [task] for task in tasks} | {"all": tasks}
    rows = {}
    for name in contest.answers:
        figures = {group: contest.figures(name, of) for group, of in groups.items()}
        speeds = {group: contest.figures(plain, of).tokens_per_s for group, of in groups.items()}
        rows[name] = {
            "tokens_per_step": {group: of.tokens_per_step for group, of in figures.items()},
            "speedup": {group: of.tokens_per_s / speeds[group] for group, of in figures.items()},
            "tokens_per_s": figures["all"].tokens_per_s,
            "different": figures["all"].different,
        }
    return rows


def compared(rows, tasks):
    """Ours against the engine's best n-gram setting, and against plain; ratios."""
    others = list(rows)[1:]
    own = [name for name in others if name not in (*OURS, SERVER_PLAIN)]
    told = {}
    if FREE in rows:
        told["tokens a step, 16 free rows"] = rows[FREE]["tokens_per_step"]["all"]
    if MEASURED in rows:
        speeds = rows[MEASURED]["speedup"]
        slowest = min(tasks, key=speeds.get)
        told |= {"speed / plain": speeds["all"], "slowest task": slowest}
        told["speed / plain there"] = speeds[slowest]
    if own and FREE in rows:
        best = max(own, key=lambda name: rows[name]["tokens_per_step"]["all"])
        steps = rows[best]["tokens_per_step"]["all"]
        told |= {"its best n-grams by tokens a step": best}
        told["tokens a step / its best"] = rows[FREE]["tokens_per_step"]["all"] / steps
    if own and MEASURED in rows:
        best = max(own, key=lambda name: rows[name]["speedup"]["all"])
        told |= {"its best n-grams by speed": best}
        ratio = rows[MEASURED]["speedup"]["all"] / rows[best]["speedup"]["all"]
        told["speed / its best"] = ratio
        if SERVER_PLAIN in rows:
            server = rows[SERVER_PLAIN]["speedup"]["all"]
            told["the same, each by plain decoding in its own program"] = ratio * server
    return told


def show_task(engine, task, contest):
    """Print the rows of one task, as soon as they are there."""
    rows = _rows(contest, [task])
    num = len(next(iter(contest.answers.values()))[task])
    print(f"\n{engine.name} {engine.weights}, {task}, {num} prompts")
    for name, row in rows.items():
        steps, speed = row["tokens_per_step"][task], row["speedup"][task]
        print(f"  {name:26} {steps:6.2f} tokens a step {speed:6.2f} x plain", flush=True)


def show(found):
    """Print the table of an engine."""
    asked, prompts = found["asked"], found["prompts"]
    print(
        f"\n{found['engine']}, {found['weights']}: {sum(prompts.values())} prompts, "
        f"{asked['max_new_tokens']} tokens, {asked['threads']} threads, commit {found['commit']}\n"
    )
    if asked["is_equality"]:
        _show_equality(found)
        return
    columns = {"setting": "{name}"}
    for group in [*prompts, "all"]:
        columns[group] = f"{{tokens_per_step[{group}]:.2f}} ({{speedup[{group}]:.2f}} x)"
    columns |= {"tokens/s": "{tokens_per_s:.1f}", "other answers": "{different}"}
    rows = [{"name": name} | row for name, row in found["rows"].items()]
    show_rows("each cell: tokens per step, then the speedup over plain decoding", rows, columns)
    for name, value in found["compared"].items():
        print(f"- {name}: {value if isinstance(value, str) else f'{value:.2f}'}")
    if "step_us" in found["facts"]:
        costs = ", ".join(f"{cost / 1e3:.1f}" for cost in found["facts"]["step_us"])
        print(f"- ms of a step of 1, 2, 4, 8, 16 rows: {costs}")
    for about in found["facts"].get("peers", ()):
        print(f"\nPeer: {about}")
    print(flush=True)


def _show_equality(found):
    num, rows = sum(found["prompts"].values()), []
    for name, row in [*found["rows"].items()][1:]:
        places = [str(each["position"]) for each in found["reasons"] if each["name"] == name]
        same = num - row["different"]
        told = f"{same} of {num} ({same / num:.2f})"
        rows.append(row | {"name": name, "same": told, "where": ", ".join(places) or "-"})
    columns = {"setting": "{name}", "the engine's own answer": "{same}"}
    columns |= {"first other token at": "{where}", "tokens per step": "{tokens_per_step[all]:.2f}"}
    show_rows("answers to the same prompts", rows, columns)
    for each in found["reasons"]:
        print(f"\n{each['task']}, {each['name']}, token {each['position']}: {_reason(each)}")
    print(flush=True)


def _reason(each):
    if "ours" not in each:
        return "no scores"
    alone, ours = each["one row"], each["ours"]
    return (
        f"token {alone[0]} before {alone[1]} by {alone[2]:.2g} in steps of one row, {ours[0]} "
        f"before {ours[1]} by {ours[2]:.2g} in ours; no score differs by more than "
        f"{each['largest change']:.2g}"
    )
