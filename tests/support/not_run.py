"""What the documents show and no test runs as it stands there, and why.

In: a command or an example. Out: the reason, one of a few; or None, and then it is run. Blocks that
are neither commands nor examples have a check of their own.
"""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from checkpoints import ROOT
from documents import Block


class Reason(Enum):
    """All reasons that there are. One more is one more thing that may break unseen."""

    INDEX = "asks a package index, or a site"
    PERSON = "waits for a person, or runs until it is told to end"
    BUILD = "builds, or runs tests; continuous integration does it by `make`"
    HOURS = "takes minutes or hours, or writes gigabytes"
    MODEL = "needs a model that is not in the repository"
    RECORDS = "needs recorded answers that are not in the repository"
    ENGINE = "needs an engine or a package that is not installed"


class Exempt(NamedTuple):
    """Why something is not run.

    Attributes:
        reason: In a word.
        instead: The test that does the same with something smaller or made up; may be empty.
    """

    reason: Reason
    instead: str = ""


NOT_RUN = {
    r"^pip install": Exempt(Reason.INDEX),
    r"^coordgen export hf:": Exempt(Reason.INDEX, "tests/convert/containers/test_hub.py"),
    r"^coordgen chat": Exempt(Reason.PERSON, "tests/cli/test_chat.py"),
    r"^coordgen serve": Exempt(Reason.PERSON, "tests/project/docs/test_server_page.py"),
    r"^coordgen verify": Exempt(Reason.PERSON, "tests/lab/verify/test_our_server.py"),
    r"^curl |^from openai ": Exempt(Reason.PERSON, "tests/project/docs/test_server_page.py"),
    r"^from langchain_openai ": Exempt(
        Reason.ENGINE, "tests/server/dialects/test_openai_client.py"
    ),
    r"coordgen_rs\.adapters|HostDrafter\(": Exempt(
        Reason.ENGINE, "tests/model/adapters/test_live.py"
    ),
    r"^make ": Exempt(Reason.BUILD),
    r"^cargo ": Exempt(Reason.BUILD),
    r"^cc ": Exempt(Reason.BUILD, "tests/core/c/test_c.py"),
    r"^python train\.py": Exempt(Reason.HOURS, "tests/convert/models/test_training.py"),
    r"^python evaluate\.py": Exempt(Reason.HOURS, "tests/lab/test_evaluation.py"),
    r"^python docs/wheel_beside_others\.py": Exempt(Reason.INDEX),
    r"^python fuzz/run\.py": Exempt(Reason.BUILD),
    r"^coordgen prefixes": Exempt(Reason.PERSON, "tests/cli/test_prefixes.py"),
    r"^python benches/server_(load|cost)\.py": Exempt(Reason.HOURS),
    r"^python benches/qwen_shape\.py": Exempt(Reason.HOURS, "tests/lab/peers/test_scripts.py"),
    r"^python benches/peers/real\.py": Exempt(Reason.MODEL, "tests/lab/peers/test_live_peers.py"),
    r"^python benches/peers/clients\.py": Exempt(Reason.MODEL, "tests/lab/peers/test_clients.py"),
    r"^python benches/peers/quantize\.py": Exempt(Reason.MODEL, "tests/lab/peers/test_scripts.py"),
    r"^python benches/peers/shapes\.py": Exempt(Reason.HOURS, "tests/lab/peers/test_shapes.py"),
    r"^python benches/peers/turns\.py": Exempt(Reason.HOURS, "tests/lab/peers/test_shapes.py"),
    r"^python benches/peers/shape_file\.py": Exempt(Reason.HOURS, "tests/lab/peers/test_shapes.py"),
    r"^python benches/never_slower\.py mixture": Exempt(
        Reason.HOURS, "tests/lab/peers/test_never_slower.py"
    ),
    r"^python benches/never_slower\.py SmolLM2": Exempt(
        Reason.MODEL, "tests/lab/peers/test_never_slower.py"
    ),
    r"^python benches/engines\.py": Exempt(
        Reason.MODEL, "tests/lab/peers/test_engine_comparison.py"
    ),
    r"^python benches/widths\.py": Exempt(Reason.MODEL, "tests/lab/peers/test_scripts.py"),
    r"^python benches/instructions\.py": Exempt(Reason.ENGINE),
    r"^python benches/width_lists\.py": Exempt(Reason.MODEL, "tests/lab/peers/test_scripts.py"),
    r"^python benches/fleet\.py smollm2": Exempt(Reason.MODEL, "docs/benchmarks.md"),
    r"^python benches/edits\.py smollm2": Exempt(Reason.MODEL, "docs/benchmarks.md"),
    r"^python benches/grammar\.py": Exempt(Reason.RECORDS),
    r"^python benches/peers/perplexity\.py": Exempt(Reason.MODEL),
    r"^python benches/peers/table\.py": Exempt(Reason.RECORDS, "tests/lab/peers/test_table.py"),
    r"^python benches/peers/replays\.py": Exempt(Reason.RECORDS, "tests/lab/peers/test_replays.py"),
    r"^coordgen quality SmolLM2": Exempt(Reason.MODEL, "tests/lab/test_quality.py"),
    r"^coordgen export SmolLM2": Exempt(Reason.MODEL, "tests/convert/containers/gguf"),
    r"^coordgen \w+ --model Qwen3-30B": Exempt(Reason.MODEL, "tests/runtime/test_experts.py"),
    r"^coordgen bench smollm2": Exempt(Reason.MODEL, "tests/lab/bench/test_bench.py"),
    r"^coordgen \w+ .*/Phi-3\.5-mini-cpu-int4": Exempt(Reason.MODEL, "tests/runtime/formats/genai"),
    r"^coordgen \w+ .*/llama_v3_2_3b_instruct": Exempt(Reason.MODEL, "tests/runtime/formats/genie"),
}
"""What begins like this is not run."""


def why_not(command: Block) -> Exempt | None:
    """Why a command or an example is not run; None for one that is."""
    return next((why for rule, why in NOT_RUN.items() if re.search(rule, command.text)), None)


def check_dependency(text: str) -> None:
    """A `Cargo.toml` that depends on this crate."""
    (name,) = tomllib.loads(text)["dependencies"]
    assert name == tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["name"]


def check_keys(text: str) -> None:
    """A file of keys, as `--api-key-file` reads it."""
    from coordgen_rs.server.guard import read_keys

    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        path.write_text(text)
        assert len(read_keys(path)) > 1


def check_c(text: str) -> None:
    """A function in C, around which an engine's are declared; it compiles without a warning."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    engine = (
        "#include <stddef.h>\n#include <stdint.h>\n"
        "int32_t engine_read(const int32_t *, size_t);\nvoid engine_run(const int32_t *, size_t);\n"
        "int32_t engine_says(size_t);\nvoid engine_keep(size_t);\n"
        f"int answer(const int32_t *, size_t, int32_t *, size_t);\n{text}"
    )
    command = [compiler, "-x", "c", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [*command, f"-I{ROOT / 'include'}", "-"], input=engine, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def check_report(text: str) -> None:
    """A report of `coordgen verify`: its lines begin as those that are printed now."""
    from coordgen_rs.lab.verify.report import Report, as_text

    lines = text.splitlines()
    assert (
        lines[0] == "exact: every answer was the same with and without drafts, streamed and whole"
    )
    printed = as_text(Report("", total=1)).splitlines()
    begins = [line.partition(" ")[0] for line in printed if line][1:]
    assert [begin for begin in begins if not any(line.startswith(begin) for line in lines)] == []


def check_record(text: str) -> None:
    """A line of a file of records."""
    from coordgen_rs.lab.replay.records import read_records

    with TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        path.write_text(text)
        assert len(read_records(path)) == 1


CHECKED: dict[str, Callable[[str], None]] = {
    r"^\[dependencies\]": check_dependency,
    r"^# name key\n": check_keys,
    r"^exact: every answer": check_report,
    r'^\{"id": "1", "task": ': check_record,
    r'^#include "coordgen\.h"': check_c,
}
"""What a block that is neither commands nor an example begins with, and how it is checked."""


def check_of(block: Block) -> Callable[[str], None] | None:
    """The check of such a block; None where there is none."""
    return next((check for rule, check in CHECKED.items() if re.search(rule, block.text)), None)
