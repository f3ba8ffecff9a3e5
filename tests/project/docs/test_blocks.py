"""Every block of every document is run, or checked, or says why not; and its names are real."""

import ast
import importlib
import inspect
from collections.abc import Iterator

import pytest

from checkpoints import ROOT
from documents import DOCUMENTS, PYTHON, SHELL, Block, blocks, typed
from not_run import CHECKED, NOT_RUN, Reason, check_of

FENCE = "```"


def all_blocks() -> list[Block]:
    return [
        block
        for path in DOCUMENTS
        for block in blocks(path.read_text("utf-8"), str(path.relative_to(ROOT)))
    ]


def unaccounted(text: str, name: str) -> list[str]:
    """The blocks of a document that no test runs or checks."""
    return [block.place for block in blocks(text, name) if not is_accounted_for(block)]


def is_accounted_for(block: Block) -> bool:
    """Whether a block is commands or an example, which are run or in `NOT_RUN`, or has a check."""
    if block.language in SHELL:
        return any(typed(f"{FENCE}sh\n{block.text}{FENCE}\n", block.place))
    return block.language in PYTHON or check_of(block) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_block_is_run_or_checked_or_says_why_not(path):
    assert unaccounted(path.read_text("utf-8"), str(path.relative_to(ROOT))) == []


@pytest.mark.parametrize("block", [b for b in all_blocks() if check_of(b)], ids=lambda b: b.place)
def test_a_block_that_is_no_command_holds_what_it_shows(block):
    check_of(block)(block.text)


@pytest.mark.parametrize("language", ["json", "", "text"])
def test_a_new_block_of_another_kind_is_found(language):
    text = f"# Title\n\n{FENCE}{language}\n{{}}\n{FENCE}\n"
    assert unaccounted(text, "x.md") == ["x.md:4"]


def test_a_block_of_commands_without_a_command_is_found():
    assert unaccounted(f"{FENCE}sh\n# nothing\n{FENCE}\n", "x.md") == ["x.md:2"]


@pytest.mark.parametrize("fence", ["  ```sh", "~~~", "````", "```sh title=x"])
def test_a_fence_that_no_reader_sees_is_refused(fence):
    with pytest.raises(ValueError, match="Fences are"):
        list(blocks(f"{fence}\nls\n{fence.rstrip('shtile=x ')}\n", "x.md"))


@pytest.mark.parametrize("rule", CHECKED)
def test_no_check_is_left_over(rule):
    assert any(check_of(block) is CHECKED[rule] for block in all_blocks())


@pytest.mark.parametrize("exempt", NOT_RUN.values(), ids=NOT_RUN)
def test_the_reason_is_one_of_a_few_and_the_test_that_is_named_exists(exempt):
    assert exempt.reason in Reason
    assert not exempt.instead or (ROOT / exempt.instead).exists()


def examples() -> list[Block]:
    return [
        example
        for path in DOCUMENTS
        for example in typed(path.read_text("utf-8"), str(path.relative_to(ROOT)))
        if example.language == "python"
    ]


def mistaken_names(example: Block) -> Iterator[str]:
    """What of ours an example imports that is not there, or calls with a keyword it has not."""
    tree, ours = ast.parse(example.text), {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("coordgen_rs"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                if hasattr(module, alias.name):
                    ours[alias.asname or alias.name] = getattr(module, alias.name)
                else:
                    yield f"no {alias.name} in {node.module}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ours:
            known = inspect.signature(ours[node.func.id]).parameters.values()
            takes_any = any(of.kind is of.VAR_KEYWORD for of in known)
            names = {of.name for of in known}
            for keyword in node.keywords:
                if keyword.arg and keyword.arg not in names and not takes_any:
                    yield f"{node.func.id} takes no {keyword.arg}"


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.place)
def test_the_names_of_an_example_are_real_whether_or_not_it_is_run(example):
    assert list(mistaken_names(example)) == []


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("from coordgen_rs import Modell", "no Modell in coordgen_rs"),
        ("from coordgen_rs import generate\ngenerate(a, b, max_tokens=3)", "takes no max_tokens"),
    ],
)
def test_a_wrong_name_in_an_example_is_found(line, mistake):
    (found,) = mistaken_names(Block("x.md:1", "python", line))
    assert mistake in found
