"""`coordgen generate`, `check` and `info` as a user types them: output, exit codes, clear lines."""

import hashlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import command_line
from chat_checkpoint import chat_checkpoint
from checkpoints import CHECKPOINTS, ROOT
from command_line import MODULE
from coordgen_rs import Model
from coordgen_rs.cli.commands import generate
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import ChatTemplateError

PROMPT = ROOT / "models" / "prompts" / "rag.txt"
HINT = "expects its chat template, and the prompt goes to it as it is: add --chat"
REPORTED = {
    *("text", "token_ids", "spans", "prompt_tokens", "reused_tokens", "read_again_tokens"),
    *("new_tokens", "steps", "tokens_per_step", "accept_histogram", "per_source", "prefill_s"),
    *("first_token_s", "decode_s", "switching", "experts", "tokens_per_s", "draft_us"),
    *("finish_reason", "seed", "commit", "provider"),
}
COMPARED = {"identical", "plain_tokens_per_s", "compare_rounds"}


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


@pytest.fixture
def text(coordgen, bundle):
    """What `generate` prints with the bundle."""

    def answered(*options, prompt=("--prompt-file", PROMPT), **known):
        return coordgen("generate", "--model", bundle, *prompt, *options, **known).out

    return answered


@pytest.fixture
def report(text):
    """The same as JSON."""
    return lambda *options, **known: json.loads(text(*options, "--json", **known))


@pytest.fixture
def refused(coordgen, bundle):
    """The one line that a command ends with; by default `generate` with the bundle."""

    def line(*arguments, code=2):
        if not arguments or str(arguments[0]).startswith("-"):
            prompt = () if "--prompt-file" in arguments else ("--prompt", "x")
            arguments = ("generate", "--model", bundle, *prompt, *arguments)
        told = coordgen(*arguments, code=code).err
        assert told.startswith("coordgen: error: "), told
        assert told.count("\n") == 1, told
        return told

    return line


def test_json_holds_every_promised_field(report):
    told = report("--compare")
    assert set(told) == REPORTED | COMPARED
    assert told["identical"] is True
    assert told["new_tokens"] == len(told["token_ids"]) > 0
    assert told["tokens_per_step"] == pytest.approx(told["new_tokens"] / told["steps"], abs=1e-3)
    assert set(told["draft_us"]) == {"p50", "p99"}
    assert told["spans"][0].keys() == {"start", "end", "source"}
    assert told["spans"][-1]["end"] == len(told["text"])
    for source in told["per_source"].values():
        assert 0 <= source["accepted"] <= source["proposed"]


def test_a_bundle_and_a_prompt_are_taken_with_letters_and_without_options(coordgen, bundle):
    few = ("--max-new-tokens", 4)
    expected = coordgen("generate", "--model", bundle, "--prompt", "Is a lion", *few).out
    assert expected.strip()
    for words in (
        ("-m", bundle, "-p", "Is a lion", *few),
        (bundle, "Is a lion", *few),
        (bundle, *few, "Is a lion"),
        (*few, "--model", bundle, "Is a lion"),
    ):
        assert coordgen("generate", *words).out == expected
    piped = command_line.coordgen("generate", bundle, *few, "-", input="Is a lion")
    assert piped.stdout == expected


@pytest.mark.parametrize("draft", ["auto", "automaton", "prompt-lookup"])
def test_text_is_the_same_from_every_draft_and_every_way_in(coordgen, bundle, text, draft):
    few, typed = ("--max-new-tokens", 40), ("--prompt", PROMPT.read_text())
    done = coordgen("generate", "--model", bundle, "--prompt-file", PROMPT, "--draft", draft, *few)
    assert done.out == text("--draft", "plain", *few, prompt=typed)
    assert "\x1b" not in done.out
    assert "tokens_per_step" in done.err


def test_sampled_text_hangs_on_the_seed_and_not_on_drafts(report):
    drawn = ("--temperature", 2)
    first = report(*drawn, "--seed", 1, "--compare")
    assert first["identical"]
    again = report(*drawn, "--seed", 1, "--draft", "prompt-lookup")
    assert first["token_ids"] == again["token_ids"]
    assert first["token_ids"] != report(*drawn, "--seed", 2)["token_ids"]


def test_a_comparison_tells_both_speeds_in_a_row_and_then_the_seed(coordgen, bundle):
    few = ("--prompt", "a", "--max-new-tokens", 4, "--temperature", 1, "--seed", 3, "--compare")
    told = coordgen("generate", "--model", bundle, *few).err
    speeds = r"[\d,]+ tokens/s with drafting, \d+ without: the same tokens, seed 3\n"
    assert re.search(f"{speeds}$", told), told


END = b"\0end of what was shown\n"


def on_terminal(*arguments, stdout=None, **environment):
    """What is shown where the errors of `generate` go to a terminal, and by default its output."""
    ours, theirs = pty.openpty()
    given = {name: value for name, value in os.environ.items() if not name.endswith("_COLOR")}
    process = subprocess.Popen(
        [*MODULE, "generate", *map(str, arguments)],
        stdout=stdout or theirs,
        stderr=theirs,
        env=given | {"TERM": "xterm"} | environment,
    )
    # Read while it runs, for a terminal holds little; and up to a mark, for one that is closed
    # may lose the rest.
    ended = threading.Thread(target=lambda: (process.wait(), os.write(theirs, END)))
    ended.start()
    shown = b""
    while END[:-1] not in shown:
        shown += os.read(ours, 1 << 16)
    ended.join()
    assert process.returncode == 0, shown
    os.close(theirs)
    os.close(ours)
    return shown.partition(END[:-1])[0].decode(errors="replace").replace("\r\n", "\n")


def test_text_is_coloured_by_source_on_a_terminal_with_a_legend(bundle, text):
    shown = on_terminal("--model", bundle, "--prompt-file", PROMPT, NO_COLOR="")
    coloured, legend, closing = shown.splitlines()[-3:]  # behind the progress bar
    assert "\x1b[32m" in coloured
    assert re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", coloured) == text().removesuffix("\n")
    assert "tokens_per_step" in closing
    assert re.search(r"target \d+%", legend)  # its text is not coloured, nor is its name
    # Which source comes first, and so has which colour, hangs on measured costs.
    assert re.search(r"\x1b\[\d+mautomaton\x1b\[0m \d+%", legend)
    assert sum(map(int, re.findall(r"(\d+)%", legend))) == pytest.approx(100, abs=2)


def test_colours_can_be_forbidden_and_forced(bundle, text, monkeypatch):
    command = ("--model", bundle, "--prompt-file", PROMPT)
    assert "\x1b[32m" not in on_terminal(*command, NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[32m" not in on_terminal(*command, TERM="dumb")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32m" in text()


def test_the_answer_ends_before_a_stop_string(text, report):
    whole = text()
    first, second = whole[30:36], whole[60:66]
    assert text("--stop", second, "--stop", first) == whole.partition(first)[0] + "\n"
    told = report("--stop", second, "--compare")
    assert told["text"] == whole.partition(second)[0]
    assert told["finish_reason"] == "stop"
    assert told["identical"]


def test_piping_into_a_closed_reader_is_no_error(bundle):
    script = f"{' '.join(MODULE)} generate --model {bundle} --prompt-file {PROMPT} | head -c 1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_interrupting_is_one_line(bundle):
    command = [*MODULE, "generate", "--model", bundle, "-"]
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **streams, text=True) as process:
        state = Path(f"/proc/{process.pid}/wchan")
        while "pipe_read" not in state.read_text():  # it sleeps in a read, past its imports
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors == "coordgen: error: interrupted\n"


def test_interrupting_an_export_leaves_nothing_behind(tmp_path):
    code = (
        "import coordgen_rs.convert.writer as writer, os, signal, sys\n"
        "from coordgen_rs.cli.main import main\n"
        "real = writer.hashlib.sha256\n"
        "def interrupt(*given): os.kill(os.getpid(), signal.SIGINT); return real(*given)\n"
        "writer.hashlib.sha256 = interrupt\n"
        f"sys.exit(main(['export', {str(CHECKPOINTS['embedded'])!r}, 'out']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 130
    assert done.stderr == "coordgen: error: interrupted\n"
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_or_a_context_too_long_is_told_with_what_is_held(refused, bundle):
    common = ("generate", "--model", bundle)
    line = refused(*common, "--prompt", "word " * 5000)
    assert "the cache holds" in line
    assert "--context" in line
    line = refused(*common, "--context", "16", "--prompt", "word " * 50)
    assert "the cache holds 16: " in line


def test_altered_bundle_names_the_file(refused, bundle, tmp_path):
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    weights = copy / json.loads((copy / "manifest.json").read_text())["blocks"][0]["weights"]
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    for damaged in (content, content[:-1]):
        weights.write_bytes(damaged)
        assert weights.name in refused("generate", "--model", copy, "--prompt", "x")
    weights.unlink()
    assert weights.name in refused("info", copy)


def test_a_memory_budget_streams_the_target_and_changes_no_token(report, bundle):
    at_rest = report()
    assert at_rest["switching"] is None
    size = (bundle / "block_00.weights").stat().st_size
    streamed = report("--memory-budget", size)
    assert streamed["switching"]["strategy"] == "streaming"
    assert streamed["switching"]["peak_bytes"] <= size
    assert streamed["token_ids"] == at_rest["token_ids"]


@pytest.mark.parametrize("form", ["f16", "q8"])
def test_keys_and_values_are_held_as_was_asked_for(coordgen, report, bundle, form):
    told = report("--kv-cache", form)
    with Model.open(bundle, kv_cache=form) as model:
        assert list(model.generate(PROMPT.read_text()).token_ids) == told["token_ids"]
        assert model._session.cache.form == form
    assert json.loads(coordgen("check", bundle, "--json", "--kv-cache", form).out)["lossless"]


def test_check_finds_the_embedded_model_lossless(coordgen, bundle):
    told = json.loads(coordgen("check", bundle, "--json").out)
    assert told["lossless"]
    assert "canonical" in told["exact_commits"]
    side = next(item for item in told["comparisons"] if item["what"].startswith("side branch"))
    assert side["identical"] or "compact" not in told["exact_commits"]
    assert all(item["identical"] for item in told["comparisons"] if "width" in item["what"])
    assert "exact under commit: canonical" in coordgen("check", bundle).out


def test_info_tells_sizes_and_the_manifest(coordgen, bundle):
    shown = coordgen("info", bundle).out
    assert "int8" not in shown
    assert "requests: several in one step" in shown
    assert json.loads(coordgen("info", bundle, "--json").out)["schema_version"] == 7


def test_sources_and_budget_are_chosen_per_request(report):
    few = ("--max-new-tokens", 24)
    usual, chosen = report(*few), report(*few, "--sources", "automaton,calibration", "--budget", 7)
    assert set(chosen["per_source"]) == {"automaton", "calibration"}
    assert len(chosen["accept_histogram"]) <= 8
    assert usual["token_ids"] == chosen["token_ids"]


@pytest.fixture
def schema(tmp_path):
    """Where a schema is to be."""
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    return tmp_path / "schema.json"


ASKED = ("--prompt", "Text:")


def test_json_follows_the_schema_of_a_file_with_the_same_tokens_as_without_drafts(report, schema):
    schema.write_text('\ufeff{"enum": ["größer", {"a": [1, 2, 3]}, null]}', "utf-8")
    told = report("--json-schema", schema, "--compare", prompt=ASKED)
    assert json.loads(told["text"]) in ("größer", {"a": [1, 2, 3]}, None)
    assert told["identical"]
    assert told["finish_reason"] == "grammar"


def test_json_that_is_cut_off_is_told_and_no_success(coordgen, bundle, report, schema):
    schema.write_text('{"const": "long enough for two tokens"}')
    asked = ("generate", "--model", bundle, *ASKED)
    told = "coordgen: the answer was cut off: --max-new-tokens is reached\n"
    cut = coordgen(*asked, "--json-schema", schema, "--max-new-tokens", 2, code=1)
    assert cut.err.startswith(told)
    assert told in coordgen(*asked, "--max-new-tokens", 2).err, "a text"
    few = ("--json-schema", schema, "--max-new-tokens", 2)
    assert report(*few, prompt=ASKED, code=1)["finish_reason"] == "length"
    assert "cut off" not in coordgen(*asked, "--json-schema", schema).err


def test_a_pattern_and_a_lark_grammar_are_followed(text, schema):
    schema.write_text('start: "go " ("north" | "south")\n')
    assert text("--regex", "yes|no", prompt=ASKED) in ("yes\n", "no\n")
    assert text("--lark", schema, prompt=ASKED) in ("go north\n", "go south\n")


def test_what_cannot_be_followed_is_one_line(refused, schema):
    for content, said in (
        ('{"type": "object", "unevaluatedProperties": {"not": {}}}', "unevaluatedProperties"),
        ('{"a": ', f"{schema}: the JSON schema is not valid JSON"),
    ):
        schema.write_text(content)
        assert said in refused("--json-schema", schema)


@pytest.fixture(scope="module")
def chat_bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hint")
    checkpoint = chat_checkpoint("embedded-draft", folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle", prefill_rows=16, decode_rows=4)
    return folder / "bundle"


def hints(*arguments):
    few = ("--max-new-tokens", "4", "--threads", "1")
    return on_terminal("--model", *arguments, *few, stdout=subprocess.DEVNULL).count(HINT)


def test_a_prompt_without_the_template_is_told_of_once_on_a_terminal(
    chat_bundle, bundle_of, coordgen
):
    assert hints(chat_bundle, "--prompt", "What?") == 1
    assert hints(chat_bundle, "--chat", "--user", "What?") == 0
    assert hints(bundle_of("embedded-draft", "fp32"), "--prompt", "What?") == 0
    few = ("--prompt", "What?", "--max-new-tokens", 4)
    assert HINT not in coordgen("generate", "--model", chat_bundle, *few).err


def test_an_empty_prompt_is_told_of_once(chat_bundle, coordgen, tmp_path):
    few = ("--prompt", "", "--max-new-tokens", 4)
    begins = coordgen("generate", "--model", chat_bundle, *few).err
    assert begins.startswith("coordgen: the prompt is empty, so the answer may be about")
    bundle = Path(shutil.copytree(chat_bundle, tmp_path / "without a begin token"))
    manifest, tokenizer = (bundle / name for name in ("manifest.json", "tokenizer.json"))
    text = json.dumps({**json.loads(tokenizer.read_text()), "post_processor": None})
    record = json.loads(manifest.read_text())
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    record["files"]["tokenizer.json"] = {"num_bytes": len(text.encode()), "sha256": sha256}
    tokenizer.write_text(text)
    manifest.write_text(json.dumps(record))
    assert coordgen("generate", "--model", bundle, *few, code=2).err == (
        "coordgen: error: the prompt is empty, and this model's tokenizer puts no token before "
        "it: give some text to continue\n"
    )


def test_a_template_that_cannot_be_read_is_none_to_tell_of():
    class Unreadable:
        @property
        def has_chat_template(self):
            raise ChatTemplateError("damaged")

    assert not generate._has_template(Unreadable())
