"""Whether a model has the same bits on this processor as on another.

    python tests/core/arm64/logits.py BUNDLE KEPT.npz --prompt-len 64 --answer-len 32

Where KEPT.npz is absent it is written; elsewhere what this processor computes is compared with it:
the logits of every row of a prompt, read in one run, and of each step of its greedy answer. Then
the start of the answer is drafted, and must be the same. The session's own test of exactness, which
takes a thousand rows, is left out.
"""

import argparse
import platform
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordgen_rs import Bundle, OrtSession, Tokenizer, generate, make_drafter
from coordgen_rs._core import kernel_processor
from coordgen_rs.loading.options import chosen_provider, open_options

_TEXT = (
    "The ferry to the island of Hiddensee runs from Wednesday to Sunday, twice a day: at 08:15 and "
    "at 16:40. Dogs travel for free, bicycles cost 4 euros. In winter the ferry to the island runs "
    "on Saturdays only. Question: when does the ferry to the island run in winter? Answer: ferry"
)
_DRAFTED = 8


def session_of(bundle: Path) -> OrtSession:
    """A session that was not tested: whether it is exact here is what is asked."""
    options = open_options("session_of", {})
    device = chosen_provider(options).device(Bundle.open(bundle), kv_cache=options["kv_cache"])
    session = OrtSession(device)
    session.is_exact_at_any_rows = True
    return session


def computed(
    session: OrtSession, prompt: NDArray[np.uint32], answer_len: int
) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """The logits `(rows, vocab_size)` of a prompt and its greedy answer, and the answer."""
    rows: list[NDArray[np.float32]] = []
    session.prefill(prompt[:-1], on_logits=lambda logits: rows.append(logits.copy()))
    answer, last = [], int(prompt[-1])
    one = next(inputs for inputs in session.step_inputs if inputs.rows == 1)
    for _ in range(answer_len):
        one.fill_chain(np.array([last], np.uint32), session.length)
        rows.append(session.step(one).copy())
        session.commit(np.zeros(1, np.uint32))
        last = int(rows[-1].argmax())
        answer.append(last)
    return np.concatenate(rows), np.array(answer, np.uint32)


def drafted(
    session: OrtSession, prompt: NDArray[np.uint32], num_tokens: int
) -> tuple[list[int], int]:
    """The first tokens of the answer with drafts, and the steps that they took."""
    session.rewind(len(prompt) - 1)
    steps = generate(
        session,
        prompt,
        max_new_tokens=num_tokens,
        drafter=make_drafter(session),
        ignore_eos=True,
        reuse_prefix=True,
    )
    tokens = [list(step.token_ids) for step in steps]
    return [int(token) for step in tokens for token in step], len(tokens)


def differences(name: str, here: NDArray[np.float32], there: NDArray[np.float32]) -> list[str]:
    """What differs, told by row; empty where all bits are the same."""
    differ = here.view(np.uint32) != there.view(np.uint32)
    found = np.flatnonzero(differ.any(axis=1))
    return [
        f"{name}: row {row}: {differ[row].sum()} of {here.shape[1]} logits differ, by "
        f"{np.abs(here[row] - there[row]).max():.3g} at most"
        for row in islice(found, 5)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--prompt-len", type=int, default=64, help="tokens; default %(default)s")
    parser.add_argument("--answer-len", type=int, default=32, help="tokens; default %(default)s")
    options = parser.parse_args()
    began = time.monotonic()
    session = session_of(options.bundle)
    ids = Tokenizer.of(session.bundle).encode(_TEXT)
    prompt = np.resize(ids, options.prompt_len).astype(np.uint32)
    logits, answer = computed(session, prompt, options.answer_len)
    name = options.bundle.name
    here = f"{platform.machine()}, kernels {kernel_processor()}"
    if not options.kept.exists():
        np.savez(options.kept, logits=logits, answer=answer, made_on=here)
        print(f"{name}: {len(logits)} rows of logits written on {here}")
        return 0
    with np.load(options.kept) as kept:
        there = str(kept["made_on"])
        found = differences(name, logits, kept["logits"])
        if not np.array_equal(answer, kept["answer"]):
            found.append(f"{name}: the answer is another: {answer} and not {kept['answer']}")
    wanted = answer[:_DRAFTED].tolist()
    tokens, num_steps = drafted(session, prompt, len(wanted))
    if tokens != wanted:
        found.append(f"{name}: drafts change the answer: {tokens} and not {wanted}")
    if found:
        print("\n".join(found))
        return 1
    print(
        f"{name}: {len(logits)} rows of logits have the bits of {there} on {here}; {len(tokens)} "
        f"tokens with drafts are the same, in {num_steps} steps ({time.monotonic() - began:.0f} s)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
