"""llama.cpp's own benchmark as a live engine that only reads: what the library takes alone.

In: a GGUF file and threads. Out: `Opened` with one contestant. It reads tokens of its own, as many
as the prompt has; each call is a process, which loads the model and reads once before it measures.
"""

import json
import subprocess

from contest import Answer, Contestant
from live.llama_build import ProgramError, command, end_with_parent, last_lines
from live.process import Opened

KIND = "bench"


def measured(command, *asked):
    """What llama-bench says of its tests, as JSON types; raises ProgramError."""
    done = subprocess.run(
        [*command, *map(str, asked), "--repetitions", "1", "--output", "json"],
        capture_output=True,
        text=True,
        preexec_fn=end_with_parent,
    )
    if done.returncode != 0:
        raise ProgramError(f"llama-bench ended with {done.returncode}: {last_lines(done.stderr)}")
    return json.loads(done.stdout)


class LlamaBench(Contestant):
    """A program that is run once for each prompt."""

    name = KIND

    def __init__(self, command):
        self._command = command

    def answer(self, prompt, max_new_tokens):
        """Reads all but the last token, as ours does, and decodes nothing."""
        (test,) = measured(self._command, "--n-prompt", len(prompt) - 1, "--n-gen", 0)
        return Answer([], 0, 0, test["avg_ns"] / 1e9, 0.0)


def open_engine(gguf, threads, programs):
    """`Opened`; raises NotBuiltError or ModelFileError."""
    bench = LlamaBench(command(programs, "llama-bench", gguf, threads))
    return Opened({KIND: bench}, {"file": gguf.name, "threads": threads})
