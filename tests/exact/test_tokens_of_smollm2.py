"""SmolLM2-135M-Instruct says what it said before, whatever drafts, and however it is asked."""

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")
from checkpoints import ROOT
from real_model import QUESTIONS, chat, needs_real_model
from recorded_tokens import Subject, requests, together

pytestmark = needs_real_model


def asked(number):
    text, further = (QUESTIONS[at % len(QUESTIONS)] for at in (number, number + 1))
    return requests(chat(text), f" {further}", number, chats=True)


def test_a_real_model_says_what_is_recorded():
    subject = Subject("smollm2", ROOT / "build" / "smollm2", asked, few=True)
    subject.check_plain()
    subject.check("auto")
    subject.check("together", together, few=True, parallel=4)
