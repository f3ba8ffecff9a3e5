"""The command as a user types it: output, exit codes, one clear line for every mistake."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoints import CHECKPOINTS, ROOT
from command_line import MODULE, coordgen, refused
from coordgen_rs import Model

PROMPT = ROOT / "models" / "prompts" / "rag.txt"


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


def test_json_holds_every_promised_field(bundle):
    done = coordgen("generate", "--model", bundle, "--prompt-file", PROMPT, "--json", "--compare")
    report = json.loads(done.stdout)
    assert set(report) == {
        "text",
        "token_ids",
        "spans",
        "prompt_tokens",
        "reused_tokens",
        "read_again_tokens",
        "new_tokens",
        "steps",
        "tokens_per_step",
        "accept_histogram",
        "per_source",
        "prefill_s",
        "first_token_s",
        "decode_s",
        "switching",
        "experts",
        "tokens_per_s",
        "draft_us",
        "finish_reason",
        "seed",
        "commit",
        "provider",
        "identical",
        "plain_tokens_per_s",
        "compare_rounds",
    }
    assert report["identical"] is True
    assert report["new_tokens"] == len(report["token_ids"]) > 0
    assert report["tokens_per_step"] == pytest.approx(
        report["new_tokens"] / report["steps"], abs=1e-3
    )
    assert set(report["draft_us"]) == {"p50", "p99"}
    assert report["spans"][0].keys() == {"start", "end", "source"}
    assert report["spans"][-1]["end"] == len(report["text"])
    for source in report["per_source"].values():
        assert 0 <= source["accepted"] <= source["proposed"]


def test_a_bundle_and_a_prompt_are_taken_with_letters_and_without_options(bundle):
    few = ("--max-new-tokens", 4)
    expected = coordgen("generate", "--model", bundle, "--prompt", "Is a lion", *few).stdout
    assert expected.strip()
    for words in (
        ("-m", bundle, "-p", "Is a lion", *few),
        (bundle, "Is a lion", *few),
        (bundle, *few, "Is a lion"),
        (*few, "--model", bundle, "Is a lion"),
    ):
        assert coordgen("generate", *words).stdout == expected
    assert coordgen("generate", bundle, *few, "-", input="Is a lion").stdout == expected


@pytest.mark.parametrize("draft", ["auto", "automaton", "prompt-lookup", "plain"])
def test_text_is_the_same_from_every_draft_and_every_way_in(bundle, draft):
    text = PROMPT.read_text()
    common = ("generate", "--model", bundle, "--draft", draft, "--max-new-tokens", 40)
    from_file = coordgen(*common, "--prompt-file", PROMPT)
    plain = coordgen(*common[:3], "--draft", "plain", "--max-new-tokens", 40, "--prompt", text)
    assert from_file.stdout == plain.stdout
    assert from_file.stdout == coordgen(*common, "-", input=text).stdout
    assert "\x1b" not in from_file.stdout
    assert "tokens_per_step" in from_file.stderr


def test_sampled_text_hangs_on_the_seed_and_not_on_drafts(bundle):
    common = ("generate", "--model", bundle, "--prompt-file", PROMPT, "--temperature", 2)
    first = json.loads(coordgen(*common, "--seed", 1, "--compare", "--json").stdout)
    assert first["identical"]
    again = json.loads(coordgen(*common, "--seed", 1, "--draft", "prompt-lookup", "--json").stdout)
    assert first["token_ids"] == again["token_ids"]
    other = json.loads(coordgen(*common, "--seed", 2, "--json").stdout)
    assert first["token_ids"] != other["token_ids"]
    assert "temperature" in refused(*common[:-1], -1)
    assert "seed" in refused(*common, "--seed", -1)


def test_a_comparison_tells_both_speeds_in_a_row_and_then_the_seed(bundle):
    common = ("generate", "--model", bundle, "--prompt", "a", "--max-new-tokens", 4)
    done = coordgen(*common, "--temperature", 1, "--seed", 3, "--compare")
    speeds = r"[\d,]+ tokens/s with drafting, \d+ without: the same tokens, seed 3\n"
    assert re.search(f"{speeds}$", done.stderr), done.stderr


def on_terminal(*arguments, **environment):
    """Run a command whose output and errors go to a terminal; return what is shown there."""
    ours, theirs = pty.openpty()
    given = {name: value for name, value in os.environ.items() if not name.endswith("_COLOR")}
    command = [*MODULE, *map(str, arguments)]
    subprocess.run(
        command,
        stdout=theirs,
        stderr=theirs,
        env=given | {"TERM": "xterm"} | environment,
        check=True,
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # at the end of what was shown
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    return shown.decode().replace("\r\n", "\n")


def test_text_is_coloured_by_source_on_a_terminal_with_a_legend(bundle):
    command = ("generate", "--model", bundle, "--prompt-file", PROMPT)
    plain = coordgen(*command).stdout
    text, legend, closing = on_terminal(*command).splitlines()[-3:]  # behind the progress bar
    assert "\x1b[32m" in text
    assert re.sub(r"\x1b\[[?\d]*[a-zA-Z]", "", text) == plain.removesuffix("\n")
    assert "tokens_per_step" in closing
    assert re.search(r"target \d+%", legend)  # its text is not coloured, nor is its name
    assert re.search(r"\x1b\[32mautomaton\x1b\[0m \d+%", legend)
    assert sum(map(int, re.findall(r"(\d+)%", legend))) == pytest.approx(100, abs=2)


def test_colours_can_be_forbidden_and_forced(bundle):
    command = ("generate", "--model", bundle, "--prompt-file", PROMPT)
    assert "\x1b[32m" not in on_terminal(*command, NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b[32m" in on_terminal(*command, NO_COLOR="")
    assert "\x1b[32m" not in on_terminal(*command, TERM="dumb")
    given = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    assert "\x1b[32m" in coordgen(*command, env=given | {"FORCE_COLOR": "1"}).stdout


def test_the_answer_ends_before_a_stop_string(bundle):
    command = ("generate", "--model", bundle, "--prompt-file", PROMPT)
    whole = coordgen(*command).stdout
    first, second = whole[30:36], whole[60:66]
    done = coordgen(*command, "--stop", second, "--stop", first)
    assert done.stdout == whole.partition(first)[0] + "\n"
    report = json.loads(coordgen(*command, "--stop", second, "--compare", "--json").stdout)
    assert report["text"] == whole.partition(second)[0]
    assert report["finish_reason"] == "stop"
    assert report["identical"]
    assert "stop" in refused(*command, "--stop", "")


def test_piping_into_a_closed_reader_is_no_error(bundle):
    script = f"{' '.join(MODULE)} generate --model {bundle} --prompt-file {PROMPT} | head -c 1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_interrupting_is_one_line(bundle):
    command = [*MODULE, "generate", "--model", bundle, "-"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_stdin(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors == "coordgen: error: interrupted\n"


def wait_for_stdin(process):
    """Return once the process sleeps in a read of its standard input, that is, past its imports."""
    state = Path(f"/proc/{process.pid}/wchan")
    while "pipe_read" not in state.read_text():
        assert process.poll() is None


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


def test_wrong_paths_and_files_are_named(bundle, tmp_path):
    assert "nowhere" in refused("generate", "--model", "nowhere", "--prompt", "x")
    assert "absent.txt" in refused("generate", "--model", bundle, "--prompt-file", "absent.txt")
    assert "manifest.json" in refused("info", tmp_path)
    assert "nowhere" in refused("export", "nowhere", tmp_path / "out")
    assert str(bundle) in refused("export", CHECKPOINTS["embedded"], bundle)
    assert "Is a directory" in refused("generate", "--model", bundle, "--prompt-file", tmp_path)
    binary = tmp_path / "binary.txt"
    binary.write_bytes(b"\xff\xfe\x00")
    told = refused("generate", "--model", bundle, "--prompt-file", binary)
    assert f"{binary} is not UTF-8: byte 0xff at offset 0" in told


def test_a_prompt_longer_than_the_cache_is_named(bundle):
    line = refused("generate", "--model", bundle, "--prompt", "word " * 5000)
    assert "the cache holds" in line
    assert "--context" in line


def test_fewer_tokens_of_context_are_held_if_that_is_asked_for(bundle):
    line = refused("generate", "--model", bundle, "--context", "16", "--prompt", "word " * 50)
    assert "the cache holds 16: " in line
    assert "made for" in refused("generate", "--model", bundle, "--context", 10**6, "--prompt", "x")


def test_options_out_of_range_are_named(bundle):
    common = ("generate", "--model", bundle, "--prompt", "x")
    assert "--max-new-tokens" in refused(*common, "--max-new-tokens", 0)
    assert "--threads" in refused(*common, "--threads", 0)


def test_altered_bundle_names_the_file(bundle, tmp_path):
    copy = tmp_path / "bundle"
    shutil.copytree(bundle, copy)
    weights = copy / json.loads((copy / "manifest.json").read_text())["blocks"][0]["weights"]
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert weights.name in refused("generate", "--model", copy, "--prompt", "x")
    weights.write_bytes(content[:-1])
    assert weights.name in refused("generate", "--model", copy, "--prompt", "x")
    weights.unlink()
    assert weights.name in refused("info", copy)


def test_a_memory_budget_streams_the_target_and_changes_no_token(bundle):
    command = ["generate", "--model", bundle, "--prompt-file", PROMPT, "--json"]
    at_rest = json.loads(coordgen(*command).stdout)
    assert at_rest["switching"] is None
    size = (bundle / "block_00.weights").stat().st_size
    streamed = json.loads(coordgen(*command, "--memory-budget", str(size)).stdout)
    assert streamed["switching"]["strategy"] == "streaming"
    assert streamed["switching"]["peak_bytes"] <= size
    assert streamed["token_ids"] == at_rest["token_ids"]
    assert f"{size} bytes are the least" in refused(*command, "--memory-budget", "1k")
    assert "no profile at absent" in refused(*command, "--profile", "absent")
    assert "6 blocks" in refused(*command, "--profile", "redmi-k60-pro-qwen2.5-1.5b")
    assert "'much' is not a number of bytes" in refused(*command, "--memory-budget", "much")


@pytest.mark.parametrize("form", ["f16", "q8"])
def test_keys_and_values_are_held_as_was_asked_for(bundle, form):
    command = ["--model", bundle, "--prompt-file", PROMPT, "--json", "--kv-cache", form]
    report = json.loads(coordgen("generate", *command).stdout)
    with Model.open(bundle, kv_cache=form) as model:
        assert list(model.generate(PROMPT.read_text()).token_ids) == report["token_ids"]
        assert model._session.cache.form == form
    assert json.loads(coordgen("check", bundle, "--json", "--kv-cache", form).stdout)["lossless"]


@pytest.mark.parametrize("command", ["generate", "chat", "serve", "check", "bench"])
def test_forms_of_keys_and_values_are_told_and_others_refused(command):
    assert "--kv-cache" in coordgen(command, "--help").stdout
    model = ("--model", "x") if command == "generate" else ("x",)
    line = refused(command, *model, "--kv-cache", "q4")
    assert "--kv-cache" in line
    assert "f32, f16, q8" in line.replace("'", "")


def test_check_finds_the_embedded_model_lossless(bundle):
    done = coordgen("check", bundle, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["lossless"]
    assert "canonical" in report["exact_commits"]
    side = next(item for item in report["comparisons"] if item["what"].startswith("side branch"))
    assert side["identical"] or "compact" not in report["exact_commits"]
    assert all(item["identical"] for item in report["comparisons"] if "width" in item["what"])
    assert "exact under commit: canonical" in coordgen("check", bundle).stdout


def test_info_tells_sizes_and_the_manifest(bundle):
    shown = coordgen("info", bundle).stdout
    assert "int8" not in shown
    assert "requests: several in one step" in shown
    manifest = json.loads(coordgen("info", bundle, "--json").stdout)
    assert manifest["schema_version"] == 7


@pytest.mark.parametrize("command", ["generate", "export", "check", "info"])
def test_help_has_examples(command):
    done = coordgen(command, "--help")
    assert done.returncode == 0
    assert f"coordgen {command}" in done.stdout.split("example")[-1]


def test_sources_and_budget_are_chosen_per_request(bundle):
    arguments = ("generate", "--model", bundle, "--prompt-file", PROMPT, "--max-new-tokens", 24)
    chosen = ("--sources", "automaton,calibration", "--budget", 7)
    reports = [
        json.loads(coordgen(*arguments, "--json", *options).stdout) for options in ((), chosen)
    ]
    assert set(reports[1]["per_source"]) == {"automaton", "calibration"}
    assert len(reports[1]["accept_histogram"]) <= 8
    assert reports[0]["token_ids"] == reports[1]["token_ids"]
    assert "guess" in refused(*arguments, "--sources", "automaton,guess")
