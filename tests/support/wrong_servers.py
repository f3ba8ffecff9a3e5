"""Servers in the form of OpenAI's API that answer by rule, and do so wrongly where a test says so.

In: a fault by its name. Out: a server on a port of this machine, and its URL. The answers are a
function of what is asked, but for the fault: no model, no clock.
"""

import hashlib
import json
import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORDS = [*"abcdefghijklmnop", "mill", "wheel", "red", "日本", "é", "👍🏽", '"', "\\", "\n"]


def _answer(content: bytes, *lines: str, status: int = 200, length: int | None = None) -> bytes:
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content) if length is None else length}"]
    return "\r\n".join([*head, *lines, "", ""]).encode() + content


SAID = {
    "too short": [_answer(b'{"choices": []}', length=99)],
    "invalid chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"],
    "bad utf8": [_answer(b"data: \xff\n"), _answer(b'{"choices": [{"text": "\xff"}]}')],
    "status 500": [_answer(b'{"error": {"message": "out of \\u001b[2J memory"}}', status=500)],
    "no json": [_answer(b"<html>welcome</html>")],
    "deep json": [_answer(b"[" * 100_000)],
    "not http": [b"SSH-2.0-OpenSSH\r\n"],
    "redirect": [_answer(b"", "Location: http://127.0.0.1/v1", status=302)],
    "no end": [_answer(b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')],
    "wrong types": [_answer(b'{"choices": [{"message": {"content": 7, "tool_calls": {}}}]}')],
}
"""By faults, what is sent in place of an answer: streamed and whole, where these differ."""


class Answerer:
    """What a server says, and which faults it has.

    Args:
        fault: One of the names in `test_wrong_servers.py`; None for a server that is right.
        owner: What it says it is.
        has_drafts: Whether it drafts where it is not told otherwise.
        model: What it lists.
    """

    def __init__(self, fault=None, owner="coordgen", has_drafts=True, model="fake"):
        self.fault, self.owner, self.has_drafts, self.model = fault, owner, has_drafts, model
        self.draws, self.num_calls, self.num_asked = random.Random(7), 0, 0
        self.num_looks = 0
        self.ended = threading.Event()

    def drafts(self, body):
        """Whether it drafts this answer."""
        return body.get("coordgen", {}).get("drafts", self.has_drafts)

    def said(self, body):
        """Tokens of the content, and the arguments of the calls."""
        drafts = self.drafts(body)
        self.num_asked += 1
        asked = json.dumps([body.get(name) for name in ("messages", "prompt", "tools")])
        seed = body.get("seed") if body["temperature"] else None
        if self.fault == "other draws" and drafts and seed is not None:
            seed += 1
        digest = hashlib.sha256(f"{asked}{seed}".encode()).digest()
        own = random.Random(digest)
        tokens = [own.choice(WORDS) for _ in range(body["max_tokens"])]
        if self.fault == "says nothing":
            return [], []
        if self.fault == "plain fails" and body.get("stream"):
            tokens[3] = "?"
        if self.fault == "one token in a thousand" and drafts:
            tokens = ["?" if self.draws.random() < 0.001 else token for token in tokens]
        if self.fault == "noise" and self.draws.random() < 0.5:
            tokens[len(tokens) // 2] = "!"
        if self.fault == "near tie" and drafts:
            tokens[3] = "?"
        if not body.get("tools"):
            return tokens, []
        call = json.dumps({"text": "".join(tokens), "number": len(tokens)})
        self.num_calls += drafts
        if self.fault == "one call in fifty" and drafts and self.num_calls % 50 == 0:
            call = call[:-9]
        return [], [call]

    def figures(self, body, num):
        num = 10**400 if self.fault == "huge figures" else num
        told = {"usage": {"completion_tokens": num}, "system_fingerprint": "fake-1"}
        if self.fault == "tells nothing":
            return told
        if self.drafts(body) or self.fault == "drafts stay on":
            told["timings"] = {"draft_n": 9, "draft_n_accepted": 4}
        if self.fault == "as openai tells":
            num = 4 if told.pop("timings", None) else 0
            details = {"accepted_prediction_tokens": num, "rejected_prediction_tokens": num}
            told["usage"]["completion_tokens_details"] = details
        return told

    def whole(self, body):
        tokens, calls = self.said(body)
        reason = "tool_calls" if calls else "length"
        choice = {"index": 0, "finish_reason": reason}
        if self.fault == "other finish reason" and self.drafts(body):
            choice["finish_reason"] = "stop"
        if "prompt" in body:
            choice["text"] = "".join(tokens)
        else:
            choice["message"] = {"role": "assistant", "content": "".join(tokens)}
            if calls:
                listed = [self._call(number, call) for number, call in enumerate(calls)]
                choice["message"] = {"role": "assistant", "content": None, "tool_calls": listed}
        if body.get("logprobs"):
            other = -0.72 if self.fault == "near tie" else -4.0
            pairs = [{"logprob": -0.7}, {"logprob": other}]
            content = [{"token": token, "top_logprobs": pairs} for token in tokens]
            choice["logprobs"] = {"content": content}
        return {"choices": [choice], **self.figures(body, len(tokens) or 20)}

    def events(self, body):
        message = self.whole(body)
        choice = message["choices"][0]
        text = choice.get("text", choice.get("message", {}).get("content")) or ""
        if self.fault == "another stream":
            text = text[:5] + text[6:]
        key = "text" if "prompt" in body else "content"
        for start in range(0, len(text), 7):
            part = {key: text[start : start + 7]}
            yield {"choices": [part if key == "text" else {"delta": part}]}
        for call in choice.get("message", {}).get("tool_calls", []):
            given = call["function"]["arguments"]
            for start in range(0, len(given), 11):
                function = {"arguments": given[start : start + 11]}
                if not start:
                    function["name"] = call["function"]["name"]
                delta = {"tool_calls": [{"index": call["index"], "function": function}]}
                yield {"choices": [{"delta": delta}]}
        end = {"finish_reason": choice["finish_reason"]} | ({"text": ""} if key == "text" else {})
        yield {"choices": [end]} | {k: v for k, v in message.items() if k != "choices"}

    def _call(self, number, given):
        function = {"name": "save", "arguments": given}
        return {"index": number, "id": f"call_{self.num_asked}", "function": function}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        answerer = self.server.answerer
        answerer.num_looks += 1
        if answerer.fault == "unavailable" and answerer.num_looks < 3:
            return self._send(b'{"error": {"message": "Loading model"}}', status=503)
        is_loading = answerer.fault == "loading" and answerer.num_looks < 3
        state = "loading" if is_loading or answerer.fault == "never loaded" else "ready"
        listed = {"data": [{"id": answerer.model, "owned_by": answerer.owner, "state": state}]}
        return self._send(json.dumps(listed if self.path == "/v1/models" else {}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answerer = self.server.answerer
        hostile = getattr(self, f"_{answerer.fault}".replace(" ", "_"), None)
        fails = answerer.fault == "plain fails" and not answerer.drafts(body)
        said = SAID.get("status 500" if fails else answerer.fault)
        if said is not None:
            self.wfile.write(said[0] if body.get("stream") else said[-1])
            self.close_connection = True
        elif hostile is not None:
            hostile(body)
        elif body.get("stream"):
            events = [json.dumps(event) for event in answerer.events(body)]
            text = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
            if answerer.fault == "byte order mark":
                text = f"\ufeff{text}"
            if answerer.fault == "carriage returns":
                text = text.replace("\n", "\r")
            self._send(text.encode())
        else:
            self._send(json.dumps(answerer.whole(body)).encode())

    def _send(self, content, status=200, length=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def _head(self, *lines):
        self.wfile.write("\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode())
        self.close_connection = True

    def _hangs(self, body):
        self.server.answerer.ended.wait(600)
        self.close_connection = True

    def _too_long(self, body):
        self._send(json.dumps(self.server.answerer.whole(body)).encode(), length=20)
        self.close_connection = True

    def _endless(self, body):
        self._head()
        event = b'data: {"choices": [{"delta": {"content": "again "}}]}\n\n' * 2000
        try:
            while not self.server.answerer.ended.is_set():
                self.wfile.write(event)
        except OSError:
            pass

    def _slow_drip(self, body):
        self._head()
        try:
            while not self.server.answerer.ended.wait(0.02):
                self.wfile.write(b" ")
        except OSError:
            pass

    def _slow_head(self, body):
        try:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
            while not self.server.answerer.ended.wait(0.02):
                self.wfile.write(b"a")
        except OSError:
            pass
        self.close_connection = True


@contextmanager
def answering(fault=None, **options):
    """A server with a fault, and its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        server.answerer = Answerer(fault, **options)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.answerer.ended.set()
            server.shutdown()
            thread.join()
