"""Type checkers find what is wrong in a user's program, and nothing else."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import coordgen_rs

RIGHT = """
from coordgen_rs import (
    CoordgenError, Model, OpenOptions, TextDelta, RequestOptions, Stats, generate, open_session
)

def answer(prompt: str) -> str:
    with Model.open("bundle", threads=1) as model:
        try:
            text: str = model.generate(prompt, temperature=0.5, seed=None, stop=None).text
        except CoordgenError:
            return ""
        piece: TextDelta
        for piece in model.stream(prompt, max_new_tokens=3, on_read=print):
            print(piece.upper(), piece.source)
        return "".join(model.stream(prompt, drafts=False)) + text

def answers(prompts: list[str], keep: bool) -> list[str]:
    with Model.open("bundle", parallel=4) as model:
        for answer in model.generate_many(prompts, max_new_tokens=40):
            print(answer.text)
        every = model.generate_many(prompts, keep_errors=keep)
        return [it.text for it in every if not isinstance(it, CoordgenError)]

def recorded(opening: OpenOptions, request: RequestOptions) -> str:
    with Model.open("bundle", **opening) as model:
        return model.chat([{"role": "user", "content": "Hi"}], tools=None, **request).text

recorded({"draft": ["sam"], "kv_cache": "q8"}, {"temperature": 0.5, "stop": ["x"]})

def tokens(stats: Stats) -> list[int]:
    session = open_session("bundle", width=3)
    return [token for step in generate(session, [1]) for token in step.token_ids]
"""
WRONG = {
    "from coordgen_rs import Modle": "Modle",
    "import coordgen_rs\ncoordgen_rs.Modle": "Modle",
    "from coordgen_rs import Model\nModel.open('b').generate('x', max_token=3)": "max_token",
    "from coordgen_rs import Model\nModel.open('b').generate('x', drafts='no')": "drafts",
    "from coordgen_rs import Model\nModel.open('b', thread=3)": "thread",
    "from coordgen_rs import Model\nModel.open('b', history=3)": "history",
    "from coordgen_rs import open_session\nopen_session('b', history='x')": "history",
    "from coordgen_rs import Model\nModel.open('b').chat([], tool=None)": "tool",
    "from coordgen_rs import Model\nModel.open('b').generate('x').tekst": "tekst",
    "from coordgen_rs import Model\n"
    "Model.open('b').generate_many(['x'], keep_errors=True)[0].text": "text",
}


def checked(checker, folder):
    """What a type checker says of a user's files, by file."""
    commands = {
        "mypy": ["mypy", "--strict", "--no-error-summary", "--hide-error-context"],
        "basedpyright": ["basedpyright", "--level", "error"],
    }
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: a user's file is NOT checked by it")
    root = Path(coordgen_rs.__file__).parents[1]
    (folder / "mypy.ini").write_text("[mypy]\nfollow_imports = silent\n")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(root)], "include": ["*.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    names = sorted(path.name for path in folder.glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", *commands[checker], *names],
        cwd=folder,
        env=os.environ | {"MYPYPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    lines = [line for line in done.stdout.splitlines() if "error" in line]
    assert lines or not done.returncode, done.stdout + done.stderr
    return {name: [line for line in lines if name in line] for name in names}


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_a_right_program_passes_and_what_is_wrong_is_named(checker, tmp_path):
    (tmp_path / "right.py").write_text(RIGHT)
    for number, source in enumerate(WRONG):
        (tmp_path / f"wrong_{number}.py").write_text(source + "\n")
    said = checked(checker, tmp_path)
    assert said["right.py"] == []
    for number, name in enumerate(WRONG.values()):
        assert any(name in line for line in said[f"wrong_{number}.py"]), (name, said)
