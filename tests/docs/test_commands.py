"""What README and docs tell to type: it parses, and it runs, on a tiny scale.

Each document is read from top to bottom in a folder of its own, in which lies what it takes for
granted (a checkpoint, a prompt, a bundle). `SMALLER` says what is cut down, `NOT_RUN` what is not
run here and why; all of it must parse with the options as they are.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoints import CHECKPOINTS, ROOT
from documents import DOCUMENTS, Typed, mistakes, parse_error, simple_commands, typed

NOT_RUN = {
    r"^pip install": "asks a registry",
    r"^coordgen chat": "waits for a person; cli/test_chat.py talks to it",
    r"^coordgen serve": "runs until it is told to end; tests/server asks it",
    r"^curl ": "asks a server",
    r"^from openai ": "asks a server; tests/server does the same",
    r"^from langchain_openai ": "asks a server, and needs the package langchain-openai",
    r"^make ": "builds; continuous integration runs the targets",
    r"^cargo ": "compiles; continuous integration runs it by `make`",
    r"^python train\.py": "trains for hours",
    r"^python evaluate\.py": "writes over the demo prompts; test_models_corpus.py runs it",
    r"^python docs/wheel_beside_others\.py": "asks a registry, and builds the wheel",
    r"^python fuzz/run\.py": "fuzzes; continuous integration runs it by `make`",
    r"^python benches/server_load\.py": "takes a minute, and httpx",
    r"^python benches/server_cost\.py": "takes a minute, and httpx",
    r"^python benches/qwen_shape\.py": "writes half a gigabyte",
    r"^python benches/peers/real\.py": "needs a real model; test_live_peers.py runs it with fakes",
    r"^python benches/engines\.py": "needs a real model; adapters/test_live.py runs small ones",
    r"^python benches/widths\.py": "needs two bundles of a real model",
    r"^python benches/fleet\.py smollm2": "needs a real model; benchmarks.md runs a small one",
    r"^python benches/grammar\.py": "needs a real model, and recorded calls of tools",
    r"^python benches/peers/perplexity\.py": "needs a real model, and llama.cpp",
    r"^coordgen quality SmolLM2": "needs a real model",
    r"^coordgen export SmolLM2": "needs a real model",
    r"^coordgen bench smollm2": "needs two bundles of a real model",
    r"^python benches/peers/replays\.py": "needs recorded answers; bench/test_replays.py has some",
    r"^coordgen \w+ .*/Phi-3\.5-mini-cpu-int4": "needs a GenAI folder; target/genai has some",
    r"^coordgen \w+ .*/llama_v3_2_3b_instruct": "needs a bundle of AI Hub; target/genie has some",
}
"""What begins like this is not run."""

SMALLER = [
    (r"--context 4096", "--context 512"),
    (r"--blocks 6", "--blocks 2"),
    (r"(coordgen export [^|>#]*[^|>#\s])", r"\1 --prefill-rows 16 --decode-rows 4"),
    (r"(coordgen export .*--provider qnn.*)", r"\1 --context 64"),
    (r"(coordgen generate [^|>#]*[^|>#\s])", r"\1 --max-new-tokens 12"),
    (r"(corpus\.py --jsonl) \d+", r"\1 1 | sed -n 1p"),
    (r"(--prompt-len 1024)", "--prompt-len 64"),
    (r"--quick", "--sections draft-length"),
    (r"(coordgen bench [^|>#]*[^|>#\s])", r"\1 --limit 1 --max-new-tokens 4 --repeats 1"),
    (r"(python benches/never_slower\.py .*)", r"\1 --limit 1 --repeats 1 --max-new-tokens 4"),
    (r"(python benches/peers/compare\.py .*)", r"\1 --rounds 1"),
    (r"--template qwen2\.5", "--template none"),
    (r"(coordgen profile [^|>#]*[^|>#\s])", r"\1 --repeats 1"),
]
"""What is cut down, and to what; tried in this order, each on what the one before left."""

HAS_QNN = importlib.util.find_spec("onnxruntime_qnn") is not None
QUESTION = "The lamp of the Tormel mill is green, says Adam. What is green?\nAnswer:\n"
_NUM_RECORDS = 12
_LIMIT_S = 900


def commands() -> list[Typed]:
    return [command for path in DOCUMENTS for command in typed_of(path)]


def typed_of(path: Path) -> list[Typed]:
    return list(typed(path.read_text("utf-8"), str(path.relative_to(ROOT))))


def why_not(command: Typed) -> str | None:
    """Why a command is not run here."""
    return next((why for rule, why in NOT_RUN.items() if re.search(rule, command.text)), None)


def smaller(text: str) -> str:
    joined = text.replace("\\\n", " ")
    for rule, replacement in SMALLER:
        joined = re.sub(rule, replacement, joined)
    return joined


def workplace(folder: Path, document: list[Typed], bundle_of: Callable[[str, str], Path]) -> Path:
    """Put into `folder` what the commands of a document take for granted, and do not make."""
    for name in ("models", "benches", "tests"):
        (folder / name).symlink_to(ROOT / name)
    draft, prompts = CHECKPOINTS["embedded-draft"], folder / "mails"
    (folder / "path" / "to").mkdir(parents=True)
    for name in ("Qwen2.5-0.5B-Instruct", "path/to/Qwen2.5-0.5B-Instruct", "tokenizer"):
        (folder / name).symlink_to(draft)
    prompts.mkdir()
    for path in (prompts / "first.txt", folder / "question.txt", folder / "mail.txt"):
        path.write_text(QUESTION)
    (folder / "template.jinja").write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    record = {"id": "1", "task": "rag", "prompt": QUESTION, "output": "The lamp is green."}
    for name in ("prompts.jsonl", "records.jsonl", "mails.jsonl"):
        (folder / name).write_text(f"{json.dumps(record)}\n" * _NUM_RECORDS)
    made = {word for command in document for word in written_by(command)}
    for name in {"bundle", "small-bundle", "embedded-bundle", "qwen-shape"} - made:
        (folder / name).symlink_to(bundle_of("embedded-draft", "fp32"))
    for script in (ROOT / "models").glob("*.py"):  # models/README.md is read in models/
        (folder / script.name).symlink_to(script)
    return folder


def written_by(command: Typed) -> Iterator[str]:
    """The bundles that a command makes when it is run."""
    if command.language == "python" or why_not(command):
        return
    for call in simple_commands(command.text):
        if call[:2] == ["coordgen", "export"]:
            yield call[3]


def run(command: Typed, folder: Path) -> None:
    """Run a command as a shell would, or an example as Python would; it must succeed."""
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if command.language == "sh":
        words = ["bash", "-euo", "pipefail", "-c", smaller(command.text)]
    else:
        words = [sys.executable, "-c", command.text]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=_LIMIT_S
    )
    assert done.returncode == 0, f"{command.place}: {words[-1]}\n{done.stdout[-500:]}{done.stderr}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_to_be_typed_runs(path, bundle_of, tmp_path):
    document = typed_of(path)
    if "--provider qnn" in path.read_text() and not HAS_QNN:
        pytest.skip("no onnxruntime-qnn here")
    workplace(tmp_path, document, bundle_of)
    for command in document:
        if why_not(command) is None:
            run(command, tmp_path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_options_and_targets_exist(path):
    assert mistakes(path.read_text("utf-8"), str(path.relative_to(ROOT))) == []


def test_what_is_cut_down_still_parses():
    for command in commands():
        if command.language == "sh" and why_not(command) is None:
            for call in simple_commands(smaller(command.text)):
                assert call[0] != "coordgen" or parse_error(call[1:]) is None, command


@pytest.mark.parametrize("rule", [*NOT_RUN, *(rule for rule, _ in SMALLER)])
def test_no_exception_is_left_over(rule):
    assert any(re.search(rule, command.text.replace("\\\n", " ")) for command in commands())


FENCE = "```"


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("coordgen generate --model b --prompt x --drfat=sam", "unrecognized arguments: --drfat"),
        ("coordgen generate --model b --prompt x --draft guess", "invalid choice: 'guess'"),
        ("coordgen generate --prompt x", "required: --model"),
        ("cat x | coordgen decode -", "invalid choice: 'decode'"),
        ("coordgen history ls answers > a && coordgen info --all b", "unrecognized"),
        ("make demi", "No rule to make target"),
        ("make -C .. demi | tee a", "No rule to make target"),
        ("cargo bench --bench stop", "no bench stop"),
        ("python models/corpus.py --jsonlines 3", "has no --jsonlines"),
        ("python models/corpse.py", "no models/corpse.py"),
        ("cordgen info bundle", "what is cordgen?"),
    ],
)
def test_a_wrong_command_in_a_document_is_found(line, mistake):
    text = f"# Title\n\n{FENCE}sh\npip install x    # fine\n{line}\n{FENCE}\n"
    (found,) = mistakes(text, "README.md")
    assert found.startswith("README.md:5: ")
    assert mistake in found


def test_a_wrong_option_in_running_text_is_found():
    text = "Take `coordgen bench BUNDLE --grid`, `coordgen plan --grid` or `coordgen pan`."
    assert mistakes(text, "x.md") == [
        "x.md: `coordgen bench BUNDLE --grid`: no option --grid",
        "x.md: `coordgen pan`: no command pan",
    ]


def test_an_example_that_raises_is_found(tmp_path):
    with pytest.raises(AssertionError, match=r"x\.md:3: raise SystemExit"):
        run(Typed("x.md:3", "python", "raise SystemExit(3)\n"), tmp_path)


def test_commands_go_on_behind_backslashes_and_within_quotes():
    text = f"{FENCE}sh\na 'b\nc'  # d\n\n# only a remark\ne \\\n    f | g > h\n{FENCE}\n"
    first, second = typed(text, "x.md")
    assert first == Typed("x.md:2", "sh", "a 'b\nc'  # d")
    assert list(simple_commands(first.text)) == [["a", "b\nc"]]
    assert second.place == "x.md:6"
    assert list(simple_commands(second.text)) == [["e", "f"], ["g"]]
