"""`coordgen check`: is a bundle exact on this machine, and under which way of committing.

A prompt is run through both graphs and all widths, its drafts are accepted along the first path
and along side branches, under each way to commit that the device allows, and everything is compared
with plain decoding.
"""

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import Accepted, Drafter, StepInputs
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import EmptyPromptError
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.drafting.proposer import DraftProposer, WrappedDrafter
from coordgen_rs.generation.loop import generate, plain
from coordgen_rs.generation.step import Step
from coordgen_rs.lab.tables import tell
from coordgen_rs.loading.self_test import decode_chain, decode_rests, side_branch
from coordgen_rs.loading.session import open_session
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.text.tokenizer import Tokenizer

_SIDE_BRANCH = "side branch against first path"


@dataclass(frozen=True)
class ExactnessRow:
    """Two computations of the same thing.

    Attributes:
        what: What was compared.
        largest_difference: Largest absolute difference of logits; None where tokens are compared.
        identical: Whether all bits, or all tokens, are the same.
    """

    what: str
    largest_difference: float | None
    identical: bool


@dataclass(frozen=True)
class CheckReport:
    """All comparisons of one bundle, and what follows for the way to commit."""

    comparisons: tuple[ExactnessRow, ...]
    exact_commits: tuple[str, ...]

    @property
    def lossless(self) -> bool:
        """Whether generation with canonical commit gave the tokens of plain decoding."""
        return "canonical" in self.exact_commits

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return asdict(self) | {"lossless": self.lossless}


class SideBranchDrafter(WrappedDrafter):
    """Drafts the known answer, but as the second branch of the root, behind a wrong first path.

    So every accepted draft token is accepted along a side branch: the case in which canonical and
    compact commit differ. Where the target says something else, which a compact commit may lead
    to, it drafts nothing more.

    Args:
        drafter: The drafter that verifies and commits; it serves one request.
        text: The last token of the prompt, and what the target is going to say, `(tokens,) u32`.
        vocab_size: Number of token ids, at least 2.
    """

    def __init__(self, drafter: Drafter, text: NDArray[np.uint32], vocab_size: int) -> None:
        super().__init__(drafter)
        self._text, self._vocab_size, self._given = text, vocab_size, 0
        self._said, self._follows = int(text[0]), True

    def propose(self, past_len: int) -> StepInputs:
        """The answer's next tokens as a side branch; what a canonical step carries goes first."""
        if self.drafter.num_carried:
            return self.drafter.propose(past_len)
        return self.drafter.propose(past_len, self._tree())

    def _tree(self) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        root = self._said
        coming = self._text[self._given + 1 : self._given + 4].tolist() if self._follows else []
        wrong = [(coming[0] + 1) % self._vocab_size] if coming else []
        tokens = np.array([root, *wrong, *coming], np.uint32)
        parents = np.array([0, 0, 0, 2, 3][: len(tokens)], np.uint32)
        return tokens, parents

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        accepted = self.drafter.accept(logits)
        for token in accepted.token_ids:
            self._said, self._given = int(token), self._given + 1
            self._follows &= self._text[self._given : self._given + 1].tolist() == [token]
        return accepted


def check(
    session: OrtSession, prompt: NDArray[np.uint32], *, max_new_tokens: int = 64
) -> CheckReport:
    """Compare graphs, widths and ways to commit on one prompt.

    Args:
        session: An opened bundle with all its widths.
        prompt: `(tokens,) u32`.
        max_new_tokens: Length of the answers that are compared.

    Raises:
        EmptyPromptError: The prompt has no token.
    """
    if len(prompt) == 0:
        raise EmptyPromptError("the prompt is empty: there is no token to continue from")
    comparisons = _compare_logits(session, prompt)
    answer = _tokens(plain(session, prompt, max_new_tokens=max_new_tokens))
    exact = []
    for commit in session.allowed_commits:
        drafter = make_drafter(session, "auto", commit)
        verifying = Drafter(
            session.step_inputs,
            session.vocab_size,
            sources=[],
            commit=commit,
            end_token_ids=session.end_token_ids,
        )
        side = SideBranchDrafter(verifying, np.append(prompt[-1], answer), session.vocab_size)
        same = []
        used: DraftProposer
        for name, used in (("lookups", drafter), ("side branches", side)):
            got = _tokens(generate(session, prompt, max_new_tokens=max_new_tokens, drafter=used))
            same.append(np.array_equal(got, answer))
            comparisons.append(
                ExactnessRow(
                    f"{commit} commit, drafts from {name}: tokens of plain", None, same[-1]
                )
            )
        if all(same):
            exact.append(commit)
    moved_rows_differ = any(c.what == _SIDE_BRANCH and not c.identical for c in comparisons)
    if moved_rows_differ and "compact" in exact:
        exact.remove("compact")  # the same tokens here, but by luck: the bits are others
    session.rewind(0)
    return CheckReport(tuple(comparisons), tuple(exact))


def _compare_logits(session: OrtSession, prompt: NDArray[np.uint32]) -> list[ExactnessRow]:
    # One row less than the widest graph has, so that a side branch has a row for another token.
    chain_len = max(1, min(8, len(prompt) - 1, session.widths[-1] - 1))
    context, chain = np.split(prompt, [len(prompt) - chain_len])
    narrowest = session.widths[0]
    expected = decode_chain(session, narrowest, context, chain)
    prefilled = decode_chain(session, narrowest, context, chain, "prefill")
    comparisons = [_compare("prefill graph against decode graphs", prefilled, expected)]
    if session.bundle.manifest.has_symbolic_rows:
        rests = decode_rests(session, context, chain, len(context) // 3)
        comparisons.append(_compare("rests of prompts against decode graphs", rests, expected))
    for width in session.widths[1:]:
        rows = decode_chain(session, width, context, chain)
        comparisons.append(_compare(f"width {width} against width {narrowest}", rows, expected))
    if 1 < len(chain) < session.widths[-1]:
        side = side_branch(session, context, chain)
        comparisons.append(_compare(_SIDE_BRANCH, side, expected))
    return comparisons


def _compare(what: str, got: NDArray[np.float32], expected: NDArray[np.float32]) -> ExactnessRow:
    difference = float(np.abs(got - expected).max())
    return ExactnessRow(what, difference, np.array_equal(got, expected))


def _tokens(steps: Iterator[Step]) -> NDArray[np.uint32]:
    return np.array([token for step in steps for token in step.token_ids], np.uint32)


EXAMPLES = """\
examples:
  coordgen check bundle
  coordgen check bundle --prompt-file question.txt --json
"""

_PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox sleeps."


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.BUNDLE,
        option.path("--prompt-file FILE").help("a UTF-8 text file with a prompt to use"),
        *option.PROVIDER,
        option.KV_CACHE,
        option.THREADS,
        option.JSON,
    )


def run(options: argparse.Namespace) -> int:
    """Check the bundle; exit code 1 if it is not lossless here."""
    question = text.read_file(options.prompt_file) if options.prompt_file else _PROMPT
    with progress() as on_progress:
        session = open_session(
            options.bundle,
            threads=options.threads,
            kv_cache=options.kv_cache,
            provider=option.chosen_provider(options),
            on_progress=on_progress,
        )
    with progress() as on_progress:
        session.bundle.verify(on_progress)
    prompt = Tokenizer.of(session.bundle).encode(question)
    report = check(session, prompt[: session.capacity // 2])

    def show() -> None:
        sums = "all checksums match" if session.bundle.has_checksums else "without checksums"
        print(f"files: {len(session.bundle.manifest.files)}, {sums}")
        for item in report.comparisons:
            by = "" if item.largest_difference is None else f" (by {item.largest_difference:.1e})"
            print(f"{item.what}: {'identical' if item.identical else f'different{by}'}")
        print(f"exact under commit: {', '.join(report.exact_commits) or 'none'}")

    tell(options.json, report.to_json(), show)
    return 0 if report.lossless else 1
