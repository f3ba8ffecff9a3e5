"""The servers of both engines, and how each is asked for the tokens behind a prompt.

In: a GGUF file, threads, and how many requests a server answers at a time. Out: rows, which answer
prompts of token ids. A server is a process that ends with this one. Nobody's answers end by
themselves, so that all have the same length.
"""

import re
import subprocess
import sys
import time
from contextlib import closing
from itertools import count

from live import llama_build, llama_server
from live.llama_build import ProgramError, end_with_parent, last_lines
from live.llama_server import SETTINGS, Server
from over_http.stream import Reply, events

KINDS = ("plain", "ngram-simple 8, 8 drafts", "ngram-map-k 8, 8 drafts")
"""llama.cpp's settings: without drafts, and those that were best with one client (`real.py`)."""
NUM_KEYS = 256
_READY = re.compile(r"serving .* on (\S+) ")
_POLL_S = 0.05
_MOST_WAITING = 64


class OurServer:
    """`coordgen serve`.

    Each round of a measurement has a key of its own: nothing is drafted from another, or reused.

    Args:
        model: A GGUF file or a bundle.
        threads: Compute threads.
        parallel: How many requests are answered at a time.
        logs: A folder for what it prints, and for its keys.
        limit_s: Seconds without a byte after which an answer has failed.
    """

    def __init__(self, model, threads, parallel, logs, limit_s):
        """Raises ProgramError where it ends before it answers."""
        self._limit_s, self._keys = limit_s, count()
        keys, self._log = logs / "keys", logs / f"coordgen-serve-{threads}.log"
        keys.write_text("".join(f"round{number} {_key(number)}\n" for number in range(NUM_KEYS)))
        command = [sys.executable, "-m", "coordgen_rs", "serve", str(model), "--port", "0"]
        command += ["--threads", str(threads), "--parallel", str(parallel), "--name", "model"]
        command += ["--api-key-file", str(keys), "--max-queue", str(_MOST_WAITING)]
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=file, preexec_fn=end_with_parent
            )
        try:
            self.address = self._ready()
        except BaseException:
            self.close()
            raise

    @property
    def rows(self):
        """With drafts, and without."""
        return [
            Row("coordgen auto", "coordgen", True, self._with(True), self.begin),
            Row("coordgen plain", "coordgen", False, self._with(False), self.begin),
        ]

    def begin(self):
        """A new key, so that nothing is remembered."""
        return _key(next(self._keys) % NUM_KEYS)

    def close(self):
        """End it."""
        self._process.kill()
        self._process.wait()

    def _with(self, drafts):
        def ask(prompt, max_new_tokens, key, is_cached, until):
            body = {
                "prompt": prompt.tolist(),
                "max_tokens": max_new_tokens,
                "ignore_eos": True,
                "stream": True,
                "cache_prompt": is_cached,
                "return_token_ids": True,
                "coordgen": {"drafts": drafts},
            }
            headers = {"Authorization": f"Bearer {key}"}
            reply, last = Reply([], [], time.perf_counter()), None
            came = events(self.address, "/v1/completions", body, headers, self._limit_s)
            with closing(came):
                for at, event in came:
                    tokens = event["choices"][0].get("token_ids", ()) if event["choices"] else ()
                    _add(reply, at, tokens)
                    last = event if "timings" in event else last
                    if until is not None and until(reply):
                        return reply
            return reply._replace(
                num_decoded=len(reply.tokens),
                steps=last["coordgen"]["num_steps"],
                num_read=last["timings"]["prompt_n"],
            )

        return ask

    def _ready(self):
        while self._process.poll() is None:
            if found := _READY.search(self._log.read_text(errors="replace")):
                return found[1]
            time.sleep(_POLL_S)
        said = last_lines(self._log.read_text(errors="replace"))
        raise ProgramError(f"coordgen serve ended: {said} (all of it: {self._log})")


class LlamaServer:
    """llama.cpp's server with one of its settings.

    Args:
        gguf: The model's file.
        kind: One of `live.llama_server.SETTINGS`.
        threads: Compute threads.
        parallel: Its slots.
        context: Tokens that each slot holds.
        programs: The folder of its programs.
        logs: A folder for what it prints.
        limit_s: Seconds without a byte after which an answer has failed.
    """

    def __init__(self, gguf, kind, threads, parallel, context, programs, logs, limit_s):
        """Raises NotBuiltError, ModelFileError, or ProgramError where it ends before it listens."""
        self._kind, self._limit_s = kind, limit_s
        command = [
            *llama_build.command(programs, "llama-server", gguf, threads),
            *("--threads-batch", str(threads), "--ctx-size", str(context * parallel)),
            *("--parallel", str(parallel), "--cont-batching"),
            *("--log-verbosity", llama_server.LOG_LEVEL),
            *SETTINGS[kind],
        ]
        name = re.sub(r"\W+", "-", kind)
        self._server = Server(command, logs / f"llama-server-{name}-{threads}-{parallel}.log")
        self.facts = llama_build.facts(programs, self._server.told)

    @property
    def rows(self):
        """The one of its setting."""
        drafts = self._kind != "plain"
        return [Row(f"llama.cpp {self._kind}", "llama.cpp", drafts, self._ask, lambda: None)]

    def close(self):
        """End it."""
        self._server.close()

    def _ask(self, prompt, max_new_tokens, key, is_cached, until):
        body = {
            "prompt": prompt.tolist(),
            "n_predict": max_new_tokens,
            "temperature": 0,
            "top_k": 1,
            "samplers": ["top_k"],
            "ignore_eos": True,
            "stream": True,
            "cache_prompt": is_cached,
            "return_tokens": True,
        }
        reply, last = Reply([], [], time.perf_counter()), None
        came = events(self._server.address, "/completion", body, {}, self._limit_s)
        with closing(came):
            for at, event in came:
                _add(reply, at, event.get("tokens", ()))
                last = event if "timings" in event else last
                if until is not None and until(reply):
                    return reply
        times = last["timings"]
        num_decoded = len(reply.tokens) - 1  # the first is chosen by the prompt's logits
        return reply._replace(
            num_decoded=num_decoded,
            steps=num_decoded - times.get("draft_n_accepted", 0),
            num_read=times["prompt_n"],
        )


class Row:
    """A server with a setting, as tables know it.

    Args:
        name: Unique among all rows.
        engine: "coordgen" or "llama.cpp".
        drafts: Whether it drafts.
        ask: Answers a prompt.
        begin: Forgets what was, and gives the key of what follows.

    Attributes:
        name: The `name` argument.
        engine: The `engine` argument.
        drafts: The `drafts` argument.
        begin: The `begin` argument.
    """

    def __init__(self, name, engine, drafts, ask, begin):
        self.name, self.engine, self.drafts = name, engine, drafts
        self.begin, self._ask = begin, ask

    def ask(self, prompt, max_new_tokens, key, *, is_cached=False, until=None):
        """The reply to a prompt.

        Args:
            prompt: `(tokens,) u32`.
            max_new_tokens: Tokens of the answer.
            key: What `begin` gave.
            is_cached: Whether what was read of the prompt before may be reused.
            until: Called with the reply so far; true ends the request.

        Raises:
            ProgramError: The server refuses or fails, or says fewer tokens.
        """
        reply = self._ask(prompt, max_new_tokens, key, is_cached, until)
        if until is None and len(reply.tokens) != max_new_tokens:
            raise ProgramError(f"{len(reply.tokens)} tokens came, not {max_new_tokens}")
        return reply


def _key(number):
    return f"key-of-round-{number}"


def _add(reply, at, tokens):
    if tokens:
        reply.tokens.extend(tokens)
        reply.arrivals.append((at, len(tokens)))
