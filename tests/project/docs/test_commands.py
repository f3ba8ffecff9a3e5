"""What README and docs tell to type: it parses, and it runs, on a tiny scale.

Each document is read from top to bottom in a folder of its own, in which lies what it takes for
granted (a checkpoint, a prompt, a bundle). `SMALLER` says what is cut down, `not_run.py` what is
not run here and why; all of it must parse with the options as they are.
"""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from chat_checkpoint import TEMPLATE, chat_checkpoint
from checkpoints import ROOT
from coordgen_rs.convert import export_checkpoint
from documents import DOCUMENTS, Block, mistakes, parse_error, run, simple_commands, typed
from gguf_files import write_gguf
from not_run import NOT_RUN, why_not

SMALLER = [
    (r"--context 4096", "--context 512"),
    (r"--blocks 6", "--blocks 2"),
    (r"--load-delay 0\.\d+", "--load-delay 0.01"),
    (r"(coordgen export [^|>#]*[^|>#\s])", r"\1 --prefill-rows 16 --decode-rows 4"),
    (r"(coordgen export .*--provider qnn.*)", r"\1 --context 64"),
    (r"(coordgen generate [^|>#]*[^|>#\s])", r"\1 --max-new-tokens 12"),
    (r"(corpus\.py --jsonl) \d+", r"\1 1 | sed -n 1p"),
    (r"(--prompt-len 1024)", "--prompt-len 64"),
    (r"--quick", "--sections draft-length"),
    (r"(--methods plain,)(?:\S*?,)??(chain|auto)\S*", r"\1\2"),
    (r"(never_slower\.py) .*(int4-bundle)", r"\1 \2"),
    (r"(coordgen bench [^|>#]*--records [^|>#]*[^|>#\s])", r"\1 --limit 1 --max-new-tokens 4"),
    (
        r"(coordgen bench (?![^|>#]*--records)[^|>#]*[^|>#\s])",
        r"\1 --limit 1 --max-new-tokens 4 --repeats 1",
    ),
    (r"(python benches/never_slower\.py .*)", r"\1 --limit 1 --repeats 1 --max-new-tokens 4"),
    (r"(python benches/peers/compare\.py .*)", r"\1 --rounds 1"),
    (r"(coordgen papers [^|>#]*[^|>#\s])", r"\1 --only 'DIAA Figure 7'"),
    (r"--template qwen2\.5", "--template none"),
    (r"(coordgen profile [^|>#]*[^|>#\s])", r"\1 --repeats 1"),
]
"""What is cut down, and to what; tried in this order, each on what the one before left."""

HAS_QNN = importlib.util.find_spec("onnxruntime_qnn") is not None
QUESTION = "The lamp of the Tormel mill is green, says Adam. What is green?\nAnswer:\n"
_NUM_RECORDS = 12
_LIMIT_S = 900


def commands() -> list[Block]:
    return [command for path in DOCUMENTS for command in typed_of(path)]


def typed_of(path: Path) -> list[Block]:
    return list(typed(path.read_text("utf-8"), str(path.relative_to(ROOT))))


def smaller(command: Block) -> str:
    """A command on a tiny scale; an example stays as it is."""
    if command.language != "sh":
        return command.text
    joined = command.text.replace("\\\n", " ")
    for rule, replacement in SMALLER:
        joined = re.sub(rule, replacement, joined)
    return joined


@pytest.fixture(scope="session")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What stands in for an instruct model: its `checkpoint`, `bundle` and `model.gguf`."""
    folder = tmp_path_factory.mktemp("instruct")
    checkpoint = chat_checkpoint("embedded-draft", folder / "checkpoint")
    export_checkpoint(checkpoint, folder / "bundle", weights="fp32")
    chat = {"tokenizer.chat_template": TEMPLATE}
    write_gguf(folder / "model.gguf", checkpoint, "Q8_0", metadata=chat)
    return folder


def workplace(folder: Path, document: list[Block], instruct: Path) -> Path:
    """Put into `folder` what the commands of a document take for granted, and do not make."""
    for name in ("models", "benches", "tests"):
        (folder / name).symlink_to(ROOT / name)
    prompts = folder / "mails"
    (folder / "path" / "to").mkdir(parents=True)
    for name in ("Qwen2.5-0.5B-Instruct", "path/to/Qwen2.5-0.5B-Instruct", "tokenizer"):
        (folder / name).symlink_to(instruct / "checkpoint")
    (folder / "model.gguf").symlink_to(instruct / "model.gguf")
    prompts.mkdir()
    texts = ("question.txt", "mail.txt", "report.txt")
    for path in (prompts / "first.txt", *(folder / name for name in texts)):
        path.write_text(QUESTION)
    record = {"id": "1", "task": "rag", "prompt": QUESTION, "output": "The lamp is green."}
    for name in ("prompts.jsonl", "records.jsonl", "mails.jsonl"):
        (folder / name).write_text(f"{json.dumps(record)}\n" * _NUM_RECORDS)
    made = {word for command in document for word in written_by(command)}
    for name in {"bundle", "small-bundle", "embedded-bundle", "qwen-shape"} - made:
        (folder / name).symlink_to(instruct / "bundle")
    for script in (ROOT / "models").glob("*.py"):  # models/README.md is read in models/
        (folder / script.name).symlink_to(script)
    return folder


def written_by(command: Block) -> Iterator[str]:
    """The bundles that a command makes when it is run."""
    if command.language == "python" or why_not(command):
        return
    for call in simple_commands(command.text):
        if call[:2] == ["coordgen", "export"]:
            yield call[3]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_to_be_typed_runs(path, instruct, tmp_path):
    document = typed_of(path)
    if "--provider qnn" in path.read_text() and not HAS_QNN:
        pytest.skip("no onnxruntime-qnn here")
    workplace(tmp_path, document, instruct)
    for command in document:
        if why_not(command) is None:
            run(command._replace(text=smaller(command)), tmp_path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_options_and_targets_exist(path):
    assert mistakes(path.read_text("utf-8"), str(path.relative_to(ROOT))) == []


def test_what_is_cut_down_still_parses():
    for command in commands():
        if command.language == "sh" and why_not(command) is None:
            for call in simple_commands(smaller(command)):
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
        ("coordgen export --weights int8", "required: CHECKPOINT"),
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
        run(Block("x.md:3", "python", "raise SystemExit(3)\n"), tmp_path)


def test_commands_go_on_behind_backslashes_and_within_quotes():
    text = f"{FENCE}sh\na 'b\nc'  # d\n\n# only a remark\ne \\\n    f | g > h\n{FENCE}\n"
    first, second = typed(text, "x.md")
    assert first == Block("x.md:2", "sh", "a 'b\nc'  # d")
    assert list(simple_commands(first.text)) == [["a", "b\nc"]]
    assert second.place == "x.md:6"
    assert list(simple_commands(second.text)) == [["e", "f"], ["g"]]
