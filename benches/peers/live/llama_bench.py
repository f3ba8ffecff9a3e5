"""llama.cpp's own benchmark as a live engine that only reads: what the library takes alone.

In: a GGUF file and threads. Out: `Opened` with one contestant. It reads tokens of its own, as many
as the prompt has; each call is a process, which loads the model and reads once before it measures.
"""

import json
import subprocess

from contest import Answer
from live.llama_build import ProgramError, command, end_with_parent, last_lines
from live.process import Opened

KIND = "bench"


class LlamaBench:
    """A program that is run once for each prompt."""

    name = KIND

    def __init__(self, command):
        self._command = command

    def begin(self):
        """Nothing is kept from prompt to prompt."""

    def answer(self, prompt, max_new_tokens):
        """Reads all but the last token, as ours does, and decodes nothing."""
        asked = ["--n-prompt", str(len(prompt) - 1), "--n-gen", "0", "--repetitions", "1"]
        done = subprocess.run(
            [*self._command, *asked, "--output", "json"],
            capture_output=True,
            text=True,
            preexec_fn=end_with_parent,
        )
        if done.returncode != 0:
            raise ProgramError(
                f"llama-bench ended with {done.returncode}: {last_lines(done.stderr)}"
            )
        (measured,) = json.loads(done.stdout)
        return Answer([], 0, 0, measured["avg_ns"] / 1e9, 0.0)


def open_engine(gguf, threads, programs):
    """`Opened`; raises NotBuiltError or ModelFileError."""
    bench = LlamaBench(command(programs, "llama-bench", gguf, threads))
    return Opened({KIND: bench}, {"file": gguf.name, "threads": threads})
