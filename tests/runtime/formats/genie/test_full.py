"""Every form of Genie's bundles and of pipelines on the HTP emulator, with the embedded model."""

import pytest

from answers import tokens_of
from coordgen_rs import Tokenizer, open_bundle, open_session, plain
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.formats.genie.device import GenieDevice
from coordgen_rs.lab.check import check
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice
from genie_bundles import Form, write_genie
from genie_pipelines import write_pipeline
from qnn_bundles import PROMPT, check_tokens, needs_emulator, qnn_bundle
from real_model import GGUF, QUESTIONS, chat, needs_real_model

pytestmark = [needs_emulator, pytest.mark.qnn_full]

NEW_TOKENS = 16
FORMS = {
    "Genie of AI Hub Models 0.65": Form(widths=(1, 32), context=160),
    "Genie of AI Hub Models 0.46": Form(
        widths=(1, 16),
        context=144,
        has_metadata=False,
        prefixes=lambda rows: "token_" if rows == 1 else "prompt_",
    ),
    "ssd of AI Hub Models 0.65": Form(widths=(8, 32), context=160, is_native=True, by_head=True),
    "GenieX of AI Hub Models 0.65, embedding as a file": Form(
        widths=(8, 16), context=144, has_lookup=True
    ),
    "Genie of AI Hub Models 0.65, hidden states of four sizes": Form(
        widths=(1, 16), context=144, has_4_sizes=True
    ),
}


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return open_bundle(qnn_bundle(folder, "embedded", "8-gen-2", blocks=2))


def said_by(own, prompt, new_tokens=8):
    with OrtSession(QnnDevice(own)) as ours:
        return tokens_of(plain(ours, prompt, max_new_tokens=new_tokens))


@pytest.fixture(scope="module")
def expected(own):
    return said_by(own, Tokenizer.of(own).encode(PROMPT), NEW_TOKENS)


@pytest.mark.parametrize("name", FORMS)
def test_tokens_are_those_of_our_own_bundle(own, expected, tmp_path, name):
    path = write_genie(own, tmp_path / "bundle", FORMS[name])
    session = open_session(path / "genie_config.json")
    assert session.widths == FORMS[name].widths
    assert session.is_exact_after_prefill
    prompt = Tokenizer.of(session.bundle).encode(PROMPT)
    check_tokens(session, prompt, expected)
    report = check(session, prompt, max_new_tokens=8)
    assert report.exact_commits == ("canonical", "compact")
    assert all(item.identical for item in report.comparisons), report.comparisons


@needs_real_model
def test_a_real_model_in_the_form_of_genie_says_the_same_as_ours(tmp_path):
    sizes = {"context": 48, "prefill_rows": 16, "decode_rows": 4, "blocks": 3}
    export_qnn(GGUF, tmp_path / "own", soc="8-gen-2", **sizes)
    own = open_bundle(tmp_path / "own")
    prompt = Tokenizer.of(own).encode(chat(QUESTIONS[0]))[-32:]
    expected = said_by(own, prompt)
    form = Form(widths=(1, 16), context=48, has_lookup=True, has_4_sizes=True)
    session = open_session(write_genie(own, tmp_path / "bundle", form) / "genie_config.json")
    check_tokens(session, prompt, expected)


PIPELINES = {
    "AI Hub Models 0.46": ({}, Form(widths=(1, 16), context=144)),
    "AI Hub Models 0.46, in two parts": ({"blocks": 2}, Form(widths=(1, 8), context=136)),
    "AI Hub Models 0.46, keys and values in 16 bits": (
        {"cache_type": "uint16"},
        Form(widths=(1, 8), context=136),
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_tokens_of_pipelines_are_those_of_our_own_bundle(tmp_path, name):
    options, form = PIPELINES[name]
    own = open_bundle(qnn_bundle(tmp_path, "embedded", "8-gen-2", **options))
    prompt = Tokenizer.of(own).encode(PROMPT)
    expected = said_by(own, prompt)
    path = write_pipeline(own, tmp_path / "pipeline", form)
    session = OrtSession(GenieDevice(open_bundle(path / "genai_config.json")))
    check_tokens(session, prompt, expected)
