"""Records of a bundle's own answers, with what it held likely behind every token.

In: a workbench, and methods whose drafts are told, too. Out: lines that `coordgen replay` reads, an
object for each prompt.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordgen_rs._core import PLAIN, Accepted, Drafter, StepInputs, top_k
from coordgen_rs.generation.drafting.proposer import WrappedDrafter
from coordgen_rs.lab.bench.workbench import Workbench
from coordgen_rs.lab.replay.rows import RecordedRows, SeenStep, TopK
from coordgen_rs.text.tokenizer import Tokenizer


class RecordingDrafter(WrappedDrafter):
    """A drafter that keeps what the target held likely in its last request.

    Attributes:
        prompt: `(tokens,) u32`.
        prefill: The prompt's rows, by chunk.
        steps: What each verification saw.
    """

    reads_prefill = True

    def begin(self, prompt_ids: NDArray[np.uint32], *limits: Any, **options: Any) -> None:
        """Same as in `Drafter`."""
        self.prompt, self.prefill, self.steps = prompt_ids.copy(), list[TopK](), list[SeenStep]()
        super().begin(prompt_ids, *limits, **options)

    def prefilled(self, logits: NDArray[np.float32]) -> None:
        """Same as in `Drafter`."""
        self.prefill.append(top_k(logits))
        if self.drafter.reads_prefill:
            super().prefilled(logits)

    def propose(self, past_len: int) -> StepInputs:
        """Same as in `Drafter`."""
        self._past_len = past_len
        return super().propose(past_len)

    def accept(self, logits: NDArray[np.float32]) -> Accepted:
        """Same as in `Drafter`."""
        tokens, parents = self.drafter.draft
        seen = top_k(logits[: len(tokens)])
        self.steps.append(SeenStep(self._past_len, tokens, parents, seen))
        return super().accept(logits)


def recorded(bench: Workbench, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Answer every prompt, and tell what was said, and what was held likely.

    Args:
        bench: Session and prompts.
        methods: Whose drafts are told, too, with the rows behind them: a replay of the same method,
            or one that drafts alike, then learns what it would have learned live.

    Raises:
        NotLosslessError: Same as in `Workbench.answers`.
    """
    session, tokenizer = bench.session, Tokenizer.of(bench.session.bundle)
    file = session.bundle.file(session.bundle.manifest.tokenizer)
    shared = {
        "model": session.bundle.shown,
        "end_token_ids": [] if bench.settings.ignore_eos else list(session.end_token_ids),
        "vocab_size": session.vocab_size,
        "tokenizer_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }

    def recording(name: str) -> RecordingDrafter:
        nothing = Drafter(  # whose steps are tokens of the target alone
            session.step_inputs[:1],
            session.vocab_size,
            sources=[],
            end_token_ids=session.end_token_ids,
        )
        drafter: Any = bench.drafter(name) or nothing  # a draft model's, too
        return RecordingDrafter(drafter)

    names = (PLAIN, *methods)
    runs: list[RecordingDrafter] = []
    for number, given in enumerate(bench.answers(names, recording, repeats=1)):
        runs.append(given.drafter)
        if len(runs) < len(names):
            continue
        prompt, answer = given.drafter.prompt, np.array(given.answered.tokens, np.uint32)
        steps = [step for run in runs for step in run.steps]
        text = np.concatenate([prompt, answer])
        rows = RecordedRows.of_steps(text, runs[0].prefill, steps)
        runs = []
        yield {
            "id": str(number // len(names)),
            "task": given.task,
            "prompt": tokenizer.decode(prompt.tolist()),
            "output": tokenizer.decode(answer.tolist()),
            **shared,
            "prompt_ids": prompt.tolist(),
            "answer_ids": answer.tolist(),
            "top8": rows.to_json(),
        }
