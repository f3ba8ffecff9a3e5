"""What must hold of every model whose drafts are verified: they change nothing.

In: sessions of random models, drafts of all kinds. Out: a failed assertion where an answer is not
that of plain decoding. `tests/exact/test_lossless.py` has the models without peculiarities,
`tests/runtime/families` those of `FAMILIES`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import gemma4
import gpt_oss
import hybrids
import mixtures
from answers import step_of, tokens_of
from coordgen_rs import (
    OrtSession,
    Regex,
    Sampling,
    Stats,
    Tokenizer,
    Vocabulary,
    generate,
    make_drafter,
    open_bundle,
    open_session,
    plain,
)
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.lab.check import SideBranchDrafter
from scripted import SCRIPTS, ScriptedDrafter

ALL_SOURCES = ("automaton", "resumed-copy", "prompt-lookup", "calibration", "reuse", "lookup-table")
METHODS = ("auto", "coordgen", "token-recycling", "diaa")
DRAFTS: tuple[str | Sequence[str], ...] = (*METHODS, ALL_SOURCES)
COMMITS = ("canonical", "compact")


HYBRIDS, GEMMA4 = tuple(hybrids.CONFIGS), tuple(gemma4.CONFIGS)
MIXTURES = {f"{name} with experts" if name in HYBRIDS else name: name for name in mixtures.CONFIGS}
FAMILIES: dict[str, Callable[..., Path]] = {
    **{name: partial(hybrids.write_hybrid, family=name) for name in HYBRIDS},
    **{key: partial(mixtures.write_mixture, family=name) for key, name in MIXTURES.items()},
    **{name: partial(gemma4.write_gemma4, family=name) for name in GEMMA4},
    "gpt_oss": partial(gpt_oss.write_gpt_oss, packed=True),
}
"""What writes a random checkpoint of a family to a path."""


class Bundles:
    """Bundles of random checkpoints, each exported when it is first asked for.

    Args:
        folder: Where they go.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, family: str, weights: Any = "fp32", blocks: int = 2) -> Path:
        """The bundle of a family with such weights, in so many blocks."""
        source, bundle = self._folder / family, self._folder / f"{family}-{weights}-{blocks}"
        if not source.exists():
            FAMILIES[family](source, seed=3)
        if not bundle.exists():
            export_checkpoint(source, bundle, weights=weights, blocks=blocks, context=1024)
        return bundle


def prompt_of(seed: int, length: int = 90) -> NDArray[np.uint32]:
    """Text that repeats parts of itself, so that lookups find some."""
    random = np.random.default_rng(seed)
    part = random.integers(3, 128, length // 3)
    return np.concatenate([part, random.integers(3, 128, length // 3), part]).astype(np.uint32)


def logits_behind(session: OrtSession, tokens: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Logits behind all of the tokens, of which the session holds some."""
    session.prefill(tokens[session.length : -1])
    return step_of(session, tokens[-1:])[0]


def fresh_logits(session: OrtSession, tokens: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Logits behind all of the tokens, of a session that forgets all it held before."""
    session.forget()
    return logits_behind(session, tokens)


def check_drafts(session: OrtSession, num_prompts: int = 2) -> None:
    """Drafts of every method, and such as are right beside the first path alone."""
    assert session.exact_commits == COMMITS
    assert session.is_exact_after_prefill
    assert session.is_exact_at_any_rows
    options: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}
    for seed in range(num_prompts):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, **options))
        text = np.array([prompt[-1], *answer], np.uint32)
        for commit in COMMITS:
            beside = SideBranchDrafter(make_drafter(session, (), commit), text, session.vocab_size)
            for drafter in (*(make_drafter(session, it, commit) for it in DRAFTS), beside):
                assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == answer


def scripted(session: OrtSession, script: Any, answer: list[int], commit: str = "auto") -> Any:
    """A drafter of what a script makes of the right answer."""
    drafter = make_drafter(session, "auto", commit)
    return ScriptedDrafter(drafter, lambda given: script(answer, given))


def check_adversarial_drafts(session: OrtSession, commits: Sequence[str] = COMMITS) -> None:
    """Wrong, empty and too long drafts, of answers with different limits."""
    for seed in range(2):
        prompt = prompt_of(seed, 40)
        answer = tokens_of(plain(session, prompt, max_new_tokens=50))
        for script, commit in product(SCRIPTS, commits):
            for limit in (1, 2, len(answer) // 2 or 1, 50):
                drafter = scripted(session, script, answer, commit)
                got = tokens_of(generate(session, prompt, max_new_tokens=limit, drafter=drafter))
                assert got == answer[:limit], (script, commit)


def check_ends(
    session: OrtSession, monkeypatch: pytest.MonkeyPatch, drafters: Callable[..., Sequence[Any]]
) -> None:
    """Answers end with the first of some tokens, also where drafts go on behind it."""
    for seed, places in enumerate(((17,), (17, 23, 30))):
        prompt = prompt_of(seed)
        answer = tokens_of(plain(session, prompt, max_new_tokens=40, ignore_eos=True))
        ends = tuple(answer[place] for place in places)
        monkeypatch.setattr(session, "end_token_ids", ends)
        expected = answer[: min(answer.index(end) for end in ends) + 1]
        assert tokens_of(plain(session, prompt, max_new_tokens=40)) == expected
        for drafter in drafters(answer):
            stats = Stats()
            steps = generate(session, prompt, max_new_tokens=40, drafter=drafter, stats=stats)
            assert tokens_of(steps) == expected
            assert stats.finish_reason == "stop"


def check_sampled(session: OrtSession) -> None:
    """Answers that are drawn, freely and under a grammar."""
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    vocabulary = Vocabulary(Tokenizer.of(session.bundle), session.vocab_size, session.end_token_ids)
    grammar = vocabulary.matcher(Regex("([a-f]{3} [0-9]{2};){1,6}"))
    for seed in range(3):
        options: dict[str, Any]
        options = {"sampling": Sampling(0.9, top_p=0.95, seed=seed), "max_new_tokens": 40}
        prompt = prompt_of(seed)
        for ruled in ({}, {"grammar": grammar}):
            expected = tokens_of(plain(session, prompt, **options, **ruled))
            for draft in ("auto", ALL_SOURCES):
                drafter = make_drafter(session, draft)
                got = generate(session, prompt, drafter=drafter, **options, **ruled)
                assert tokens_of(got) == expected
                assert len(expected) > 1


def check_streamed(bundle: Path) -> None:
    """Blocks that are streamed within a budget, or switched."""
    prompt = prompt_of(5, 300)
    expected = tokens_of(plain(open_session(bundle), prompt, max_new_tokens=30))
    experts = open_bundle(bundle).manifest.experts
    regions = [] if experts is None else experts.layers
    largest = max((region.num_bytes for region in regions), default=0)
    size = max(path.stat().st_size for path in bundle.glob("block_*.weights"))
    options: list[dict[str, Any]]
    options = [{"memory_budget": int(1.5 * size) + largest}, {"switch": "just_in_time"}]
    for option in options:
        streamed = open_session(bundle, **option)
        for _ in range(2):
            assert tokens_of(generate(streamed, prompt, max_new_tokens=30)) == expected
