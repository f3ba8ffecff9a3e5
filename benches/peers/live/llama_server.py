"""llama.cpp's server as a live engine: plain, and with each of its n-gram types.

In: a GGUF file, one of `SETTINGS` and threads. Out: `Opened` with one contestant. The server is a
process that ends with this one, on a port that the system chooses; times and counts are its own.
It is asked by its loopback address, because only there does it give out token ids.
"""

import hashlib
import http.client
import json
import re
import subprocess
import time
import urllib.error
import urllib.request

from contest import Answer
from live.llama_build import ProgramError, command, end_with_parent, facts, last_lines
from live.process import Opened

TYPES = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
SETTINGS = {
    "plain": (),
    **{kind: ("--spec-type", kind) for kind in TYPES},
    **{
        f"{kind} 8, 8 drafts": (
            *("--spec-type", kind),
            *(f"--spec-{kind}-size-n", "8", f"--spec-{kind}-size-m", "8"),
        )
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
    },
}
"""Types in their own defaults, and with shorter n-grams and drafts than 12 and 48 tokens.

Tried with a Q4_0 model on one thread: n-grams of 3, 5 and 6 tokens were slower, `ngram-mod` no
faster with shorter ones, and flash attention is best left to choose itself.
"""
REMEMBERING = ("ngram-mod", "ngram-cache")
"""Types that draft from earlier requests: a round, which repeats them, begins with a new server."""
_LISTENING = re.compile(r"listening on (http://\S+)")
LOG_LEVEL = "4"
"""At which system_info is told; nothing is logged for single tokens."""
_POLL_S = 0.05
_CLOSING_S = 10
_LOOPBACK = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Server:
    """A running llama-server.

    Args:
        command: What is run; the port is added.
        log: A file for all that it prints.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, command, log):
        """Raises ProgramError where it ends before it listens."""
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_parent,
            )
        try:
            self.address = self._listening()
        except BaseException:
            self.close()
            raise

    @property
    def told(self):
        """All that it has printed."""
        return self._log.read_text(errors="replace")

    @property
    def cpu_s(self):
        """Seconds that it has had of the cores: Linux' clock of another process."""
        return time.clock_gettime(~self._process.pid << 3 | 2)

    def post(self, path, asked):
        """The answer to a request; raises ProgramError."""
        request = urllib.request.Request(
            f"{self.address}/{path}",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with _LOOPBACK.open(request) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise ProgramError(f"llama-server refuses /{path}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._ended() from error

    def close(self):
        """End it."""
        self._process.kill()
        self._process.wait()

    def _listening(self):
        while self._process.poll() is None:
            if found := _LISTENING.search(self.told):
                return found[1]
            time.sleep(_POLL_S)
        raise self._ended()

    def _ended(self):
        try:
            what = f"ended with {self._process.wait(_CLOSING_S)}"
        except subprocess.TimeoutExpired:
            what = "does not answer"
        return ProgramError(
            f"llama-server {what}: {last_lines(self.told)} (all of it: {self._log})"
        )


class LlamaServer:
    """A server with one slot.

    Args:
        command: The server's.
        log: A file for all that it prints.
        is_remembering: Whether a round begins with a new one.
        stop_at_end: Whether an end token ends an answer.
        slots: A folder from which servers take each other's prompts.
        is_cpu_time: Whether `slots` are timed by the clock of the cores.
    """

    name = "server"

    def __init__(self, command, log, *, is_remembering, stop_at_end, slots=None, is_cpu_time=False):
        self._command, self._log = command, log
        self._is_remembering, self._stop_at_end = is_remembering, stop_at_end
        self._slots, self._is_cpu_time = slots, is_cpu_time
        self._request = {
            "temperature": 0,
            "top_k": 1,
            "samplers": ["top_k"],
            "cache_prompt": slots is not None,
            "ignore_eos": not stop_at_end,
            "return_tokens": True,
        }
        self.server = Server(command, log)

    def begin(self):
        """As of `Contestant`."""
        if self._is_remembering:
            self.server.close()
            self.server = Server(self._command, self._log)

    def answer(self, prompt, max_new_tokens):
        """As of `Contestant`."""
        asked = self._request | {"prompt": prompt.tolist(), "n_predict": max_new_tokens}
        least = 1 if self._stop_at_end else max_new_tokens
        if self._slots is None:
            return read_answer(self.server.post("completion", asked), len(prompt), least)
        self._read(asked)
        start = self.server.cpu_s
        said = read_answer(self.server.post("completion", asked), 1, least)
        took = self.server.cpu_s - start
        # The step of the prompt's last token is one like the others.
        decode_s = took if self._is_cpu_time else said.prompt_s + said.decode_s
        return Answer(said.tokens, said.decoded + 1, said.steps + 1, 0.0, decode_s)

    def _read(self, asked):
        """Read a prompt, or take what another server has read."""
        name = hashlib.sha256(json.dumps(asked["prompt"]).encode()).hexdigest()
        what = "restore"
        if not (self._slots / name).exists():
            self.server.post("completion", asked | {"n_predict": 0})
            what = "save"
        self.server.post(f"slots/0?action={what}", {"filename": name})


def read_answer(said, num_read, least):
    """`Answer` from a completion's own timings.

    Args:
        said: The server's JSON.
        num_read: Tokens of the prompt that it had to read.
        least: Tokens that it had to say.

    Raises:
        ProgramError: It read or said another number of tokens.
    """
    times, tokens = said["timings"], said["tokens"]
    if times["prompt_n"] != num_read:
        raise ProgramError(
            f"llama-server read {times['prompt_n']} tokens of the prompt, not {num_read}"
        )
    if len(tokens) != times["predicted_n"] or len(tokens) < least:
        raise ProgramError(
            f"llama-server gave {len(tokens)} tokens and timed {times['predicted_n']}, not {least}"
        )
    decoded = len(tokens) - 1  # the first is chosen by the prompt's logits
    steps = decoded - times.get("draft_n_accepted", 0)
    return Answer(tokens, decoded, steps, times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3)


def open_engine(
    gguf,
    kind,
    threads,
    context,
    stop_at_end,
    programs,
    log,
    slots=None,
    name=None,
    is_cpu_time=False,
):
    """`Opened`, its contestant under a name of its own or `kind`.

    With `slots`, a folder, servers take each other's prompts from there, and seconds are those of
    the whole answer; by the clock of the cores where that is asked for.

    Raises:
        NotBuiltError: `programs` has no llama-server.
        ModelFileError: There is no GGUF file.
        ProgramError: It ends before it listens.
    """
    asked = [
        *command(programs, "llama-server", gguf, threads),
        *("--threads-batch", str(threads), "--ctx-size", str(context), "--parallel", "1"),
        *("--cache-ram", "0", "--log-verbosity", LOG_LEVEL),  # no prompt is kept for later
        *SETTINGS[kind],
        *(() if slots is None else ("--slot-save-path", f"{slots}/")),
    ]
    server = LlamaServer(
        asked,
        log,
        is_remembering=kind in REMEMBERING,
        stop_at_end=stop_at_end,
        slots=slots,
        is_cpu_time=is_cpu_time,
    )
    told = facts(programs, server.server.told) | {"file": gguf.name, "type": kind}
    return Opened({name or kind: server}, told | {"context": context, "threads": threads})
