"""Tool calls under a JSON schema: tokens a step, and milliseconds a token, with and without.

    python benches/grammar.py BUNDLE DATA.jsonl --threads 1

DATA holds one JSON object a line: `context`, `prompt`, and as `output` a call of a tool as JSON,
maybe between <tool_call> and </tool_call>; lines with other outputs are left out. The schema allows
every tool that occurs, with the arguments that occur. "recorded": the target says the recorded
call, and only steps are counted. "live": the model answers, in turns with and without schema and
drafts; every answer is checked against plain decoding of its kind. Prints tables, or JSON.
"""

import json
import re
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from coordgen_rs import (
    JsonSchema,
    Stats,
    Tokenizer,
    Vocabulary,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.errors import GrammarError
from coordgen_rs.text.grammar.matcher import Matcher
from support.script import add_counts, add_json, parser_of, run_script, tell
from support.tables import show_rows

_CALL = re.compile(r"(?:<tool_call>)?\s*(\{.*\})\s*(?:</tool_call>)?", re.DOTALL)


def calls_of(path):
    """Records with the call that they hold, parsed."""
    records = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    for record in records:
        found = _CALL.fullmatch(record["output"].strip())
        try:
            call = json.loads(found[1]) if found else None
        except ValueError:
            continue
        if isinstance(call, dict) and {"name", "arguments"} <= call.keys():
            yield record, {name: call[name] for name in ("name", "arguments")}


def schema_of(values):
    """A schema of what these values have in common."""
    first = values[0]
    if all(isinstance(value, dict) for value in values):
        parts = defaultdict(list)
        for value in values:
            for name, part in value.items():
                parts[name].append(part)
        return {
            "type": "object",
            "properties": {name: schema_of(part) for name, part in parts.items()},
            "required": [name for name in parts if all(name in value for value in values)],
            "additionalProperties": False,
        }
    if all(isinstance(value, list) for value in values):
        items = [item for value in values for item in value]
        return {"type": "array", "items": schema_of(items) if items else {"type": "string"}}
    for kind, name in ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")):
        if all(isinstance(value, kind) for value in values):
            return {"type": name}
    return {"enum": [first, *(value for value in values[1:] if value != first)]}


def schema_of_tools(calls):
    """A call of any of the tools that occur."""
    by_name = defaultdict(list)
    for call in calls:
        by_name[call["name"]].append(call["arguments"])
    tools = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema_of(arguments)},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, arguments in by_name.items()
    ]
    return {"anyOf": tools}


class Unforced(Matcher):
    """A grammar that only masks: for comparison."""

    def forced(self, path):
        return []


def unforced(matcher):
    """The same grammar, compiled again, without forced tokens."""
    return Unforced(matcher._compile, matcher.vocab_size, matcher._ends, has_end=matcher._has_end)


def steps_of_record(drafter, prompt, answer, grammar):
    """Steps that a target needs to say `answer`; None where the grammar refuses it."""
    if grammar is not None:
        grammar.begin()
    drafter.begin(prompt, len(answer), **({} if grammar is None else {"grammar": grammar}))
    given = steps = 0
    while drafter.finish_reason is None:
        drafter.propose(len(prompt) - 1 + given)
        try:
            given += len(drafter.accept_recorded(answer[given:]).token_ids)
        except GrammarError:
            return None
        steps += 1
    return steps


def recorded(session, tokenizer, texts, grammars):
    """Tokens a step by kind of grammar, over the answers that the schema allows."""
    kinds = {name: (make_drafter(session), grammar) for name, grammar in grammars.items()}
    sums = {name: [0, 0] for name in kinds}
    refused = 0
    for prompt, text in texts:
        answer = tokenizer.encode(text, special_tokens=False)
        found = {
            name: steps_of_record(drafter, prompt, answer, grammar)
            for name, (drafter, grammar) in kinds.items()
        }
        if None in found.values():
            refused += 1
            continue
        for name, steps in found.items():
            sums[name][0] += len(answer)
            sums[name][1] += steps
    return {name: tokens / max(steps, 1) for name, (tokens, steps) in sums.items()}, refused


def live(session, texts, grammars, max_new_tokens):
    """Tokens a step and milliseconds a token, by kind of grammar and with or without drafts."""
    kinds = {}
    for name, grammar in grammars.items():
        kinds[name, "plain"] = None, grammar
        kinds[name, "drafts"] = make_drafter(session), grammar
    del kinds["masked only", "plain"]  # the same as that of the schema
    sums = {kind: np.zeros(3) for kind in kinds}
    for prompt, _ in texts:
        answers = {}
        for kind, (drafter, grammar) in kinds.items():
            stats = Stats()
            options = {"max_new_tokens": max_new_tokens, "stats": stats, "grammar": grammar}
            run = (
                generate(session, prompt, drafter=drafter, **options)
                if drafter
                else (plain(session, prompt, **options))
            )
            answers[kind] = [token for step in run for token in step.token_ids]
            sums[kind] += (stats.new_tokens, stats.steps, stats.decode_s)
        assert answers["none", "drafts"] == answers["none", "plain"]
        for name in ("schema", "masked only"):
            assert answers[name, "drafts"] == answers["schema", "plain"]
    return {
        " ".join(kind): {"tokens_per_step": tokens / steps, "ms_per_token": 1e3 * seconds / tokens}
        for kind, (tokens, steps, seconds) in sums.items()
    }


def parser():
    options = parser_of(__doc__)
    options.add_argument("bundle", type=Path, metavar="BUNDLE")
    options.add_argument("data", type=Path, metavar="DATA")
    add_counts(
        options,
        limit=(20, "live answers"),
        context=(700, "prompt tokens"),
        max_new_tokens=(96, "tokens of an answer"),
        threads=(None, "compute threads"),
    )
    add_json(options)
    return options


def show(found):
    """Print the tables."""
    times = ("vocabulary_s", "compile_ms")
    print("once:", *(f"{name} {found[name]:.2f}" for name in times), end="\n\n")
    title = f"recorded calls ({found['calls']}; {found['refused']} refused by the schema)"
    rows = [{"grammar": name, "steps": value} for name, value in found["recorded"].items()]
    show_rows(title, rows, {"grammar": "{grammar}", "tokens/step": "{steps:.2f}"})
    rows = [{"grammar": name} | row for name, row in found["live"].items()]
    columns = {"grammar": "{grammar}", "tokens/step": "{tokens_per_step:.2f}"}
    show_rows("live answers", rows, columns | {"ms/token": "{ms_per_token:.2f}"})


def main():
    options = parser().parse_args()
    session = open_session(options.bundle, threads=options.threads)
    tokenizer = Tokenizer.of(session.bundle)
    calls = list(calls_of(options.data))
    schema = JsonSchema(schema_of_tools([call for _, call in calls]))
    start = time.perf_counter()
    vocabulary = Vocabulary(tokenizer, session.vocab_size, session.end_token_ids)
    made = time.perf_counter()
    matcher = vocabulary.matcher(schema)
    once = {"vocabulary_s": made - start, "compile_ms": 1e3 * (time.perf_counter() - made)}
    grammars = {"none": None, "masked only": unforced(matcher), "schema": matcher}
    texts = []
    for record, call in calls:
        asked = f"{record['context']}\n{record['prompt']}\nassistant, a tool call as JSON: "
        prompt = tokenizer.encode(asked)[-options.context :]
        texts.append((prompt, json.dumps(call, ensure_ascii=False)))
    steps, refused = recorded(session, tokenizer, texts, grammars)
    times = live(session, texts[: options.limit], grammars, options.max_new_tokens)
    found = {"recorded": steps, "calls": len(texts) - refused, "refused": refused, "live": times}
    tell(once | found, options.json, show)


if __name__ == "__main__":
    run_script(main)
