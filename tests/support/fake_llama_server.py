"""A llama-server without a model: it does what its model file says, in JSON.

    fake_llama_server.py --version | --model FILE ...

In: the options that the benches give, and a file with any of `ends` ("at start" or "at an answer"),
`refuses`, and `timings` that replace its own. Out: what the real one prints when it starts, and
answers to completions, whole or streamed: each token is its place.
"""

import json
import os
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

VERSION = "version: 0.5.0-dev (build 1, commit 0c1e570)\nbuilt with GNU 12.2.0 for Linux x86_64"
SYSTEM_INFO = (
    "system_info: n_threads = 1 (n_threads_batch = 1) / 2 | CPU : AVX512 = 1 | REPACK = 1 |"
)
_TOKEN_S = 0.0005
"""Between two events of a stream, so that one of many tokens lasts a while."""


def installed(folder: Path) -> Path:
    """A folder with the program, where none was."""
    folder.mkdir()
    program = folder / "llama-server"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    return folder


class Handler(BaseHTTPRequestHandler):
    """Answers completions by the script of the class."""

    script: ClassVar[dict] = {}

    def do_POST(self) -> None:
        """A completion; a slot's file is neither written nor read."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.script.get("ends") == "at an answer":
            print("out of memory", flush=True)
            os._exit(5)
        if "refuses" in self.script:
            self._send(400, {"error": self.script["refuses"]})
            return
        tokens = list(range(asked.get("n_predict", 0)))
        timings = {
            "prompt_n": len(asked.get("prompt", ())),
            "prompt_ms": 500.0,
            "predicted_n": len(tokens),
            "predicted_ms": 2000.0,
            **self.script.get("timings", {}),
        }
        if not asked.get("stream"):
            self._send(200, {"tokens": tokens, "timings": timings})
            return
        self.send_response(200)
        self.end_headers()
        events = [{"tokens": [token], "stop": False} for token in tokens]
        with suppress(ConnectionError):  # who asked has gone away
            for event in (*events, {"tokens": [], "stop": True, "timings": timings}):
                time.sleep(_TOKEN_S)
                self.wfile.write(b"data: %s\n\n" % json.dumps(event).encode())

    def _send(self, status: int, answer: dict) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Tell the version, or serve until the end."""
    if "--version" in sys.argv:
        print(VERSION)
        return
    Handler.script = json.loads(Path(sys.argv[sys.argv.index("--model") + 1]).read_text("utf-8"))
    print(f"0.00.1 I process {os.getpid()}\n0.00.1 I {SYSTEM_INFO}", flush=True)
    if Handler.script.get("ends") == "at start":
        print("0.00.2 E error loading model\n0.00.2 E exiting due to model loading error")
        sys.exit(1)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"0.00.3 I listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
