"""`coordgen chat` and `generate --chat`: dialogues from a pipe, and the models to talk with."""

import io
import json
import math
import os
import re
import shutil

import pytest

from checkpoints import CHECKPOINTS, ROOT
from coordgen_rs import Bundle, Model
from coordgen_rs.cli.commands.chat.local_models import local_models
from coordgen_rs.convert import export_checkpoint

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n{% elif m.role == 'user' %}"
    "{{ m.content }}\nAnswer:\n{% else %}{{ m.content }}\n{% endif %}{% endfor %}"
)
FACT = "The lamp of the Tormel mill is green, says Adam."
QUESTION = f"{FACT} What is green?"
SHORT = ("--max-new-tokens", "12")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chat")
    checkpoint = shutil.copytree(CHECKPOINTS["embedded"], folder / "checkpoint")
    (checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    export_checkpoint(checkpoint, folder / "bundle", prefill_rows=32, decode_rows=8)
    return folder / "bundle"


@pytest.fixture
def talk(bundle, coordgen, monkeypatch):
    """What `chat` prints to lines from a pipe."""

    def said(*lines, options=()):
        typed = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(typed))
        return coordgen("chat", bundle, *SHORT, *options)

    return said


def test_answers_of_a_dialogue_follow_a_grammar(talk):
    pytest.importorskip("llguidance", reason="the extra grammar is not installed")
    done = talk(QUESTION, "And now?", options=("--regex", "(yes|no), it is"))
    assert set(done.out.splitlines()) <= {"yes, it is", "no, it is"}
    assert len(done.out.splitlines()) == 2


def test_a_dialogue_that_remembers_no_other_gives_the_same_answers(talk):
    questions = (QUESTION, "/reset", QUESTION)
    apart = talk(*questions, options=("--no-remember",))
    assert apart.out == talk(*questions).out


def test_the_exporter_stores_the_template_and_its_tokens(bundle):
    chat = Bundle.open(bundle).manifest.chat
    assert chat.templates == {"default": "chat_template.jinja"}
    assert (bundle / "chat_template.jinja").read_text() == TEMPLATE
    assert chat.tokens["pad_token"] == "<pad>"
    assert "chat_template.jinja" in Bundle.open(bundle).manifest.files


def test_a_dialogue_from_a_pipe_gives_the_answers_of_the_model(talk, bundle):
    done = talk(QUESTION, "", "And what is a mill?", options=("--system", FACT))
    messages, answers = [{"role": "system", "content": FACT}], []
    with Model.open(bundle) as model:
        for question in (QUESTION, "And what is a mill?"):
            messages.append({"role": "user", "content": question})
            answer = model.chat(messages, max_new_tokens=12)
            assert (
                answer.token_ids
                == model.chat(
                    messages, max_new_tokens=12, drafts=False, reuse_prefix=False
                ).token_ids
            )
            answers.append(answer.text)
            messages.append({"role": "assistant", "content": answer.text})
    assert done.out.split() == " ".join(answers).split()
    assert ">" not in done.out


def test_commands_are_obeyed_and_the_next_turn_reuses_the_last(talk):
    done = talk(
        "/stats",
        QUESTION,
        "/stats",
        "And?",
        "/stats",
        "/reset",
        "/stats",
        "/help",
        "/what",
        "/quit",
        QUESTION,
    )
    told = [line for line in done.out.splitlines() if line.startswith("prompt:")]
    assert " 0 reused" in told[0]
    assert " 0 reused" not in told[1]
    assert done.err.count("there is no answer yet") == 2
    assert "there is no command /what" in done.err
    assert re.search("^/reset +start a new dialogue", done.out, re.MULTILINE)
    again = talk(QUESTION, "And?", "/stats", options=("--no-reuse",))
    assert " 0 reused" in again.out


def test_generate_sends_a_message_by_the_template(bundle, coordgen):
    options = ("--model", bundle, "--chat", "--system", FACT, *SHORT, "--json")
    told = json.loads(coordgen("generate", *options, "--user", QUESTION, "--compare").out)
    with Model.open(bundle) as model:
        messages = [{"role": "system", "content": FACT}, {"role": "user", "content": QUESTION}]
        assert model.chat_prompt(messages) == f"{FACT}\n{QUESTION}\nAnswer:\n"
        expected = model.chat(messages, max_new_tokens=12)
    assert told["token_ids"] == list(expected.token_ids)
    assert told["identical"]


def test_options_of_the_choice_reach_the_model(bundle, coordgen):
    drawn = {"temperature": 1.5, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 3}
    drawn |= {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    biases = {300: 1.5, 9: -math.inf}
    typed = [part for k, v in drawn.items() for part in (f"--{k.replace('_', '-')}", v)]
    typed += [f"--logit-bias={token}={bias}" for token, bias in biases.items()]
    prompt = ROOT / "models" / "prompts" / "rag.txt"
    options = ("--max-new-tokens", "60", "--ignore-eos", "--compare", "--json")
    drawn |= {"logit_bias": biases, "logprobs": 2}
    done = coordgen(
        "generate", "--model", bundle, "--prompt-file", prompt, *typed, *options, "--logprobs", "2"
    )
    told = json.loads(done.out)
    with Model.open(bundle) as model:
        expected = model.generate(prompt.read_text(), max_new_tokens=60, ignore_eos=True, **drawn)
    assert told["token_ids"] == list(expected.token_ids)
    assert len(told["token_ids"]) == 60
    assert told["identical"]
    assert [one["logprob"] for one in told["logprobs"]] == [it.logprob for it in expected.logprobs]
    first, other = told["logprobs"][0]["top"], expected.logprobs[0].top
    assert [(it["token_id"], it["logprob"]) for it in first] == [*other]


def test_a_given_template_is_exported(tmp_path, coordgen):
    template = tmp_path / "own.jinja"
    template.write_text("{{ messages }}")
    options = ("--prefill-rows", "8", "--decode-rows", "4", "--chat-template", template)
    coordgen("export", CHECKPOINTS["embedded-draft"], tmp_path / "bundle", *options)
    assert (tmp_path / "bundle" / "chat_template.jinja").read_text() == "{{ messages }}"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory and a working directory in which nothing is."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "XDG_CACHE_HOME", "COORDGEN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return home


def gguf(path, content=b"GGUF and more"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_without_any_it_says_what_to_type(home, coordgen):
    done = coordgen("chat")
    assert "There is no model here." in done.out
    assert "coordgen chat MODEL" in done.out


def test_models_of_the_directory_and_of_other_programs_are_found(home, bundle_of, coordgen):
    cache = home / ".cache"
    gguf(cache / "huggingface/hub/models--a--b/snapshots/1/b.gguf")
    gguf(cache / "llama.cpp/c.gguf")
    gguf(home / ".lmstudio/models/d/e-00001-of-00002.gguf")
    gguf(home / ".lmstudio/models/d/e-00002-of-00002.gguf")
    gguf(home / "here.gguf")
    gguf(home.parent / "here/my model.gguf")
    gguf(home.parent / "here/mmproj-vision.gguf")
    gguf(home.parent / "here/split-00001-of-00002.gguf")
    gguf(home.parent / "here/split-00002-of-00002.gguf")
    gguf(home.parent / "here/none.gguf", b"something else")
    os.mkfifo(home.parent / "here/pipe.gguf")
    folder = home.parent / "here/llama"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    shutil.copytree(bundle_of("embedded", "fp32"), home.parent / "here/plain")  # no template
    names = [os.path.relpath(it.name, home) for it in local_models()]
    assert names == [
        "../here/llama",
        "../here/my model.gguf",
        "../here/split-00001-of-00002.gguf",
        ".cache/huggingface/hub/models--a--b/snapshots/1/b.gguf",
        ".cache/llama.cpp/c.gguf",
        ".lmstudio/models/d/e-00001-of-00002.gguf",
    ]
    done = coordgen("chat")
    assert "'my model.gguf'" in done.out
    assert done.out.endswith("  coordgen chat llama\n")


def test_a_bundle_with_a_template_is_listed_and_a_broken_manifest_is_not(home, bundle_of):
    here = home.parent / "here"
    for name in ("good", "broken"):
        shutil.copytree(bundle_of("embedded", "fp32"), here / name)
    manifest = json.loads((here / "good/manifest.json").read_text())
    manifest["chat"] = {"templates": {"default": "chat_template.jinja"}}
    (here / "good/manifest.json").write_text(json.dumps(manifest))
    (here / "broken/manifest.json").write_text("{")
    assert [(it.name, it.kind) for it in local_models()] == [("good", "bundle")]


def test_names_steer_no_terminal(home, coordgen):
    gguf(home.parent / "here" / "a\x1b[2Jb.gguf")
    done = coordgen("chat")
    assert "\x1b" not in done.out
