"""SmolLM2-135M-Instruct where `make smollm2` has fetched it, and short prompts for it.

Tests of it skip themselves elsewhere; CI runs `make smollm2` first.
"""

import pytest

from checkpoints import ROOT
from smollm2 import GGUF_BYTES, NAME

GGUF = ROOT / "build" / NAME
needs_real_model = pytest.mark.skipif(
    not GGUF.is_file() or GGUF.stat().st_size != GGUF_BYTES,
    reason=f"no build/{NAME}: run `make smollm2`",
)

_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

QUESTIONS = (
    "What is the capital of France?",
    "Repeat this line twice: the ferry to the island runs again from Wednesday, twice a day.",
    "Text: The night train leaves Basel at 22:04 and reaches Hamburg at 07:51. Tickets are sold at "
    "counter 9. When does the night train leave Basel, and when does it reach Hamburg?",
    "Shorten: The meeting about the new warehouse was moved from Monday to Thursday, because the "
    "architect is ill. The room stays the same, and so do the participants.",
    "Write a Python function that returns the largest of three numbers.",
    'Buttons: "Save" [4], "Cancel" [7], "Help" [9]. Which button saves? Answer as: click [number]',
    "Reply to this message: Hello, are we still meeting on Friday at three in the old library?",
    "Count: one, two, three, one, two, three, one, two, three. Continue.",
)


def chat(question: str) -> str:
    """A prompt of the model's chat template."""
    turns = (("system", _SYSTEM), ("user", question))
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{said}<|im_start|>assistant\n"
