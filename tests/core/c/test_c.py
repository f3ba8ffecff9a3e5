"""The C interface: programs in C that use it, compiled here, under the address sanitizer too."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from checkpoints import ROOT

WARNINGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
SANITIZED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SYSTEM = ["-lpthread", "-ldl", "-lm"]
LLAMA = Path(os.environ.get("COORDGEN_LLAMA_CPP", ROOT / "build" / "peers" / "llama.cpp"))
LLAMA_LIBRARIES = [
    "src/libllama.a",
    "ggml/src/libggml.a",
    "ggml/src/libggml-cpu.a",
    "ggml/src/libggml-base.a",
]
MODEL = Path(os.environ.get("COORDGEN_GGUF", ROOT / "build" / "SmolLM2-135M-Instruct.Q4_1.gguf"))
PROMPTS = ROOT / "benches" / "prompts"
SYSTEM_PROMPT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@pytest.fixture(scope="module")
def library() -> Path:
    """The static library, with the checks of a debug build."""
    if not shutil.which("cc") or not shutil.which("cargo"):
        pytest.skip("no C compiler or no cargo")
    build = "cargo rustc --quiet --lib --features c --crate-type staticlib"
    subprocess.run(build.split(), cwd=ROOT, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return target / "debug" / "libcoordgen_rs.a"


def compiled(source: str, library: Path, folder: Path, *flags: str) -> Path:
    program = folder / Path(source).stem
    include = ["-I", str(ROOT / "include")]
    command = ["cc", *WARNINGS, *include, str(ROOT / source), str(library), *flags, *SYSTEM]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True)


@pytest.mark.parametrize("flags", [[], SANITIZED], ids=["plain", "sanitized"])
def test_a_recorded_answer_is_given_again_in_fewer_steps(library, tmp_path, flags):
    program = compiled("examples/c/recorded.c", library, tmp_path, *flags)
    prompt, answer = tmp_path / "prompt", tmp_path / "answer"
    text = (ROOT / "docs" / "faq.md").read_bytes()
    prompt.write_bytes(text[:3000])
    answer.write_bytes(text[1000:1400] + text[3000:3400])
    per_step = []
    for _ in range(2):
        done = run(program, prompt, answer, 16, tmp_path / "history")
        assert done.returncode == 0, done.stderr
        per_step.append(float(re.search(r"([\d.]+) a step", done.stdout)[1]))
    assert per_step[0] > 2
    assert per_step[1] > 4 * 2  # from its history


@pytest.mark.parametrize("flags", [[], SANITIZED], ids=["plain", "sanitized"])
def test_random_calls_get_codes_and_never_crash(library, tmp_path, flags):
    program = compiled("tests/core/c/hostile.c", library, tmp_path, *flags)
    done = run(program, 100_000, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(reversed(line.split(" ", 1)) for line in done.stdout.splitlines())
    assert int(counts["ok"]) > 10_000
    for name in ("bad pointer", "bad handle", "bad length", "bad token", "bad option", "in use"):
        assert int(counts[name]) > 0, name
    assert int(counts["broken"]) == 0


def test_a_fork_is_refused_its_parents_handles_and_has_its_own(library, tmp_path):
    program = compiled("tests/core/c/forked.c", library, tmp_path)
    done = run(program, 100, tmp_path / "history")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "600 tokens, 0 dropped bytes\n"


def test_a_recorded_answer_of_no_tokens_has_no_mean(library, tmp_path):
    program = compiled("examples/c/recorded.c", library, tmp_path)
    prompt, answer = tmp_path / "prompt", tmp_path / "answer"
    prompt.write_bytes(b"prompt")
    answer.write_bytes(b"")
    done = run(program, prompt, answer)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0 tokens in 0 steps; 0 of 0 drafted tokens accepted\n"


def test_a_header_for_cpp_too(library, tmp_path):
    if not shutil.which("c++"):
        pytest.skip("no C compiler for C++")
    source = tmp_path / "header.cpp"
    source.write_text('#include "coordgen.h"\nint main() { return coordgen_version()[0] == 0; }\n')
    include = ["-I", str(ROOT / "include")]
    program = tmp_path / "header"
    command = ["c++", "-Wall", "-Werror", *include, str(source), str(library), *SYSTEM]
    subprocess.run([*command, "-o", str(program)], check=True)
    assert run(program).returncode == 0


def written_prompts(folder: Path, num_of_each: int) -> list[Path]:
    """Prompts of every task in SmolLM2's chat template, a file each."""
    paths = []
    for task in sorted(PROMPTS.glob("*.jsonl")):
        for line in task.read_text("utf-8").splitlines()[:num_of_each]:
            messages = json.loads(line)["messages"]
            if messages[0]["role"] != "system":
                messages = [{"role": "system", "content": SYSTEM_PROMPT}, *messages]
            turns = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
            path = folder / f"{task.stem}{len(paths)}.txt"
            path.write_text("".join(turns) + "<|im_start|>assistant\n", "utf-8")
            paths.append(path)
    return paths


@pytest.mark.parametrize("options", [[], ["--free"], ["--free", "--trees"]], ids=" ".join)
def test_llama_cpp_says_what_it_says_alone(library, tmp_path, options):
    libraries = [LLAMA / "build" / name for name in LLAMA_LIBRARIES]
    if not all(path.exists() for path in libraries):
        pytest.skip("no build of llama.cpp: `make peers`")
    if not MODEL.exists():
        pytest.skip(f"no {MODEL.name}, a file of SmolLM2")
    source = LLAMA / "vendor" / "llama.cpp"
    includes = [f"-isystem{source / name}" for name in ("include", "ggml/include")]
    flags = [*includes, *map(str, libraries), "-lstdc++", "-lgomp"]
    program = compiled("examples/c/llama.c", library, tmp_path, *flags)
    prompts = written_prompts(tmp_path, 1)
    done = run(program, MODEL, *prompts, "-n", 24, *options)
    assert done.returncode == 0, done.stderr
    assert f"{len(prompts)} of {len(prompts)} answers equal the plain ones" in done.stderr
