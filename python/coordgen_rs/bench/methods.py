"""Published methods and ours side by side, on a real model: tokens a step, speed, memory.

In: a session and prompts by task. Out: figures of every method, by task. Runs are interleaved, so
that a machine that slows down slows all of them; every answer is compared with plain decoding.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Drafter, DynamicTree, LookupTable
from coordgen_rs.bench.ablation import Prompt
from coordgen_rs.draft_model import DraftModel, ModelDrafter
from coordgen_rs.errors import OptionError
from coordgen_rs.generate import Drafting, Step, generate, plain
from coordgen_rs.session import OrtSession
from coordgen_rs.stats import Stats
from coordgen_rs.tokenizer import Tokenizer

PLAIN = "plain"


class Method(NamedTuple):
    """What drafts, and in which shape.

    Attributes:
        sources: Names that `Drafter` knows.
        remembering: More of them, where earlier requests may be drawn on.
        tree: As of `Drafter`.
        branches: As of `DraftModel`.
        in_gaps: As of `ModelDrafter`.
    """

    sources: tuple[str, ...]
    remembering: tuple[str, ...] = ()
    tree: str | DynamicTree = "best-first"
    branches: bool = True
    in_gaps: bool = True


METHODS: dict[str, Method] = {
    "prompt-lookup": Method(("lookup",)),
    "sam": Method(("sam",)),
    "token-recycling": Method(("token-recycling",), tree="static"),
    "diaa": Method(("lookup-table",), tree=DynamicTree()),
    "chain": Method(("draft-model",), branches=False, in_gaps=False),
    "edgellm-waiting": Method(("draft-model",), in_gaps=False),
    "edgellm": Method(("draft-model",)),
    "coordgen": Method(("automaton", "calibration", "reuse"), ("session",)),
    "blend": Method(
        ("automaton", "calibration", "reuse", "lookup-table", "draft-model"), ("session",)
    ),
}
"""What can be measured beside plain decoding. Of EdgeLLM also its parts (its Figure 22): a chain
of the draft model's likeliest tokens, and its trees without provisional generation."""

_SAM_REMEMBERING = Method(("sam-session",))
_MODEL = "draft-model"


@dataclass
class Tally:
    """What one method did, on one task or on all.

    Attributes:
        tokens: Tokens given out.
        steps: Verifications.
        decode_s: Seconds of decoding, drafting included.
        host_s: Seconds of `propose` and `accept`, a draft model's own left out.
    """

    tokens: int = 0
    steps: int = 0
    decode_s: float = 0.0
    host_s: float = 0.0

    def add(self, other: "Tally") -> None:
        """Count another one in."""
        self.tokens += other.tokens
        self.steps += other.steps
        self.decode_s += other.decode_s
        self.host_s += other.host_s

    def to_json(self, plain_tally: "Tally") -> dict[str, float]:
        """The rates, with the speed relative to plain decoding."""
        tokens_per_s, of_plain = self.tokens_per_s, plain_tally.tokens_per_s
        return {
            "tokens_per_step": round(self.tokens / max(self.steps, 1), 4),
            "tokens_per_s": round(tokens_per_s, 2),
            "speedup": round(tokens_per_s / of_plain, 4) if of_plain else 0.0,
            "host_share": round(self.host_s / self.decode_s, 4) if self.decode_s else 0.0,
        }

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of decoding."""
        return self.tokens / self.decode_s if self.decode_s else 0.0


@dataclass
class Comparison:
    """Result of `compare`.

    Attributes:
        rows: Rows of the widest step.
        num_prompts: Prompts of each task.
        tallies: By method, then by task.
        extra_bytes: By method: what it holds beside the target, a draft model's weights and cache
            included, after the last task.
        identical: Whether every method gave the tokens of plain decoding, always.
    """

    rows: int
    num_prompts: dict[str, int]
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    extra_bytes: dict[str, int] = field(default_factory=dict)
    identical: bool = True

    def total(self, method: str) -> Tally:
        """A method's tally over all tasks."""
        total = Tally()
        for tally in self.tallies[method].values():
            total.add(tally)
        return total

    def to_json(self) -> dict[str, Any]:
        """The figures under the names that `coordgen bench --methods --json` prints."""
        of_plain = self.tallies[PLAIN]
        return {
            "rows": self.rows,
            "num_prompts": self.num_prompts,
            "methods": {
                method: self.total(method).to_json(self.total(PLAIN))
                | {
                    "extra_bytes": self.extra_bytes[method],
                    "per_task": {t: tally.to_json(of_plain[t]) for t, tally in by_task.items()},
                }
                for method, by_task in self.tallies.items()
            },
            "identical": self.identical,
        }


def compare(
    session: OrtSession,
    prompts: Iterable[Prompt],
    methods: Iterable[str],
    *,
    draft_model: DraftModel | None = None,
    open_table: Callable[[], LookupTable] = LookupTable,
    remembering: bool = True,
    max_new_tokens: int = 96,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Answer every prompt by every method in turn, plain decoding first.

    A drafter serves all prompts of a task, one after another: a table learns, and with
    `remembering` earlier requests are drawn on by the methods whose papers do.

    Args:
        session: The target; its step costs, if it tells any, decide where drafts pay.
        prompts: Of any number of tasks; those that leave no room for an answer are left out.
        methods: Keys of `METHODS`, or "plain".
        draft_model: For "edgellm", and for "blend" where it is there.
        open_table: Makes the table that "diaa" and "blend" start each task with.
        remembering: Whether earlier requests of the task may be drawn on.
        max_new_tokens: Longest answer.
        on_progress: Called with a task, the answers done and those in all.

    Raises:
        OptionError: No such method, or one that needs a draft model.
    """
    names = [name for name in dict.fromkeys(methods) if name != PLAIN]
    _check(names, draft_model)
    encoded = _encoded(session, prompts, max_new_tokens)
    rows = session.step_inputs[-1].rows
    result = Comparison(rows, {task: len(of_task) for task, of_task in encoded.items()})
    result.tallies = {name: {} for name in (PLAIN, *names)}
    result.extra_bytes = {PLAIN: 0}
    total, done = sum(result.num_prompts.values()), 0
    for task, of_task in encoded.items():
        drafters = {
            name: _drafter(session, _method(name, remembering), open_table(), draft_model)
            for name in names
        }
        for prompt in of_task:
            expected, tally = _run(session, prompt, max_new_tokens, None)
            result.tallies[PLAIN].setdefault(task, Tally()).add(tally)
            for name, drafter in drafters.items():
                got, tally = _run(session, prompt, max_new_tokens, drafter)
                result.tallies[name].setdefault(task, Tally()).add(tally)
                result.identical &= got == expected
            done += 1
            if on_progress is not None:
                on_progress(task, done, total)
        result.extra_bytes |= {name: _extra_bytes(drafter) for name, drafter in drafters.items()}
    return result


def _check(names: list[str], draft_model: DraftModel | None) -> None:
    for name in names:
        if name not in METHODS:
            known = ", ".join([PLAIN, *METHODS])
            raise OptionError(f"method is {name!r}, but must be one of {known}")
    for name in names:
        if METHODS[name].sources == (_MODEL,) and draft_model is None:
            raise OptionError(f"method {name!r} needs a draft model")


def _method(name: str, remembering: bool) -> Method:
    if not remembering:
        return METHODS[name]
    if name == "sam":
        return _SAM_REMEMBERING
    method = METHODS[name]
    return method._replace(sources=method.sources + method.remembering)


def _encoded(
    session: OrtSession, prompts: Iterable[Prompt], max_new_tokens: int
) -> dict[str, list[NDArray[np.uint32]]]:
    tokenizer = Tokenizer.of(session.bundle)
    encoded: dict[str, list[NDArray[np.uint32]]] = {}
    for task, text in prompts:
        token_ids = tokenizer.encode(text)
        if 0 < len(token_ids) <= session.capacity - max_new_tokens:
            encoded.setdefault(task, []).append(token_ids)
    return encoded


def _drafter(
    session: OrtSession, method: Method, table: LookupTable, model: DraftModel | None
) -> Drafter | ModelDrafter:
    has_model = model is not None and _MODEL in method.sources
    if model is not None:  # a tree of its own for each method, which learns when it is enough
        model = DraftModel(
            model.session, least_that_pays=model.least_that_pays, branches=method.branches
        )
    drafter = Drafter(
        session.step_inputs,
        session.vocab_size,
        sources=[name for name in method.sources if has_model or name != _MODEL],
        costs=session.step_costs,
        end_token_ids=session.end_token_ids,
        lookup_table=table,
        model_draft=model.core if model is not None and has_model else None,
        tree=method.tree,
    )
    if model is None or not has_model:
        return drafter
    max_tokens = session.step_inputs[-1].rows - 1
    return ModelDrafter(drafter, model, max_tokens, in_gaps=method.in_gaps)


def _run(
    session: OrtSession, prompt: NDArray[np.uint32], max_new_tokens: int, drafter: Drafting | None
) -> tuple[list[int], Tally]:
    stats = Stats()
    model_s = _model_s(drafter)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stats": stats}
    if drafter is None:
        tokens = _tokens(plain(session, prompt, **options))
    else:
        tokens = _tokens(generate(session, prompt, drafter=drafter, **options))
    host_s = sum(stats.drafting_us) / 1e6 - (_model_s(drafter) - model_s)
    return tokens, Tally(stats.new_tokens, stats.steps, stats.decode_s, host_s)


def _model_s(drafter: Drafting | None) -> float:
    return drafter.model_s if isinstance(drafter, ModelDrafter) else 0.0


def _extra_bytes(drafter: Drafter | ModelDrafter) -> int:
    held = drafter.memory_bytes()
    if isinstance(drafter, ModelDrafter) and isinstance(drafter.model.session, OrtSession):
        session = drafter.model.session
        held += session.cache.nbytes
        held += sum(file.num_bytes for file in session.bundle.manifest.files.values())
    return held


def _tokens(steps: Iterator[Step]) -> list[int]:
    return [token for step in steps for token in step.token_ids]
