"""`coordgen generate` without `--chat`: on a terminal, a chat model says what it expects."""

import hashlib
import json
import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

from chat_checkpoint import chat_checkpoint
from command_line import MODULE, coordgen
from coordgen_rs.cli.commands import generate
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import ChatTemplateError

HINT = "expects its chat template, and the prompt goes to it as it is: add --chat"
SHORT = ("--max-new-tokens", "4", "--threads", "1")


@pytest.fixture(scope="module")
def chat_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hint")
    checkpoint = chat_checkpoint("embedded-draft", folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle", prefill_rows=16, decode_rows=4)
    return folder / "bundle"


def told_on_a_terminal(*arguments):
    """What the command writes to stderr where that is a terminal."""
    ours, theirs = pty.openpty()
    command = [*MODULE, "generate", *map(str, arguments), *SHORT]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=600)
    os.close(theirs)
    told = os.read(ours, 1 << 16).decode(errors="replace")  # a progress bar may be cut
    os.close(ours)
    assert done.returncode == 0, told
    return told


def test_a_prompt_without_the_template_is_told_of_once_on_a_terminal(chat_bundle):
    assert told_on_a_terminal("--model", chat_bundle, "--prompt", "What?").count(HINT) == 1


def test_nothing_is_told_of_a_chat_or_of_a_model_without_a_template(chat_bundle, bundle_of):
    assert HINT not in told_on_a_terminal("--model", chat_bundle, "--chat", "--user", "What?")
    plain = bundle_of("embedded-draft", "fp32")
    assert HINT not in told_on_a_terminal("--model", plain, "--prompt", "What?")


def test_nothing_is_told_where_stderr_is_no_terminal(chat_bundle):
    done = coordgen("generate", "--model", chat_bundle, "--prompt", "What?", *SHORT)
    assert done.returncode == 0
    assert HINT not in done.stderr


def test_an_empty_prompt_is_told_of_once(chat_bundle, tmp_path):
    begins = coordgen("generate", "--model", chat_bundle, "--prompt", "", *SHORT)
    assert begins.returncode == 0
    assert begins.stderr.startswith("coordgen: the prompt is empty, so the answer may be about")
    bundle = Path(shutil.copytree(chat_bundle, tmp_path / "without a begin token"))
    manifest, tokenizer = (bundle / name for name in ("manifest.json", "tokenizer.json"))
    text = json.dumps({**json.loads(tokenizer.read_text()), "post_processor": None})
    record = json.loads(manifest.read_text())
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    record["files"]["tokenizer.json"] = {"num_bytes": len(text.encode()), "sha256": sha256}
    tokenizer.write_text(text)
    manifest.write_text(json.dumps(record))
    refused = coordgen("generate", "--model", bundle, "--prompt", "", *SHORT)
    assert refused.returncode == 2
    assert refused.stderr == (
        "coordgen: error: the prompt is empty, and this model's tokenizer puts no token before "
        "it: give some text to continue\n"
    )


def test_a_template_that_cannot_be_read_is_none_to_tell_of():
    class Unreadable:
        @property
        def has_chat_template(self):
            raise ChatTemplateError("damaged")

    assert not generate._has_template(Unreadable())
