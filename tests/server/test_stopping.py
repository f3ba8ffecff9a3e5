"""The end of a server: a real process, real signals, and what clients see meanwhile."""

import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

import httpx

from command_line import MODULE
from coordgen_rs.server.serving import Shutdown
from served import served

LOADS_FOR_EVER = """
import sys
import time

from coordgen_rs.cli import model_options


def opened(*arguments, **options):
    print("opening", file=sys.stderr, flush=True)
    time.sleep(3600)


model_options.opened = opened
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(scope="module")
def bundle(bundle_of):
    return bundle_of("embedded", "fp32")


def line_with(process, words):
    """The next line on stderr that holds these words."""
    while words not in (line := process.stderr.readline()):
        assert line, f"the server ended without {words!r}"
    return line


def connected(url):
    place = urlsplit(url)
    return socket.create_connection((place.hostname, place.port), timeout=600)


def test_neither_many_connections_nor_a_refused_body_that_does_not_end_hold_the_server_up(bundle):
    with served(bundle, "--grace", "3600") as (process, url), ExitStack() as opened:
        process.send_signal(signal.SIGSTOP)
        for _ in range(100):
            opened.enter_context(connected(url))
        process.send_signal(signal.SIGCONT)
        assert httpx.get(f"{url}/health", timeout=600).status_code == 200
        client = opened.enter_context(connected(url))
        client.sendall(b"POST /no HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404")
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        assert "Traceback" not in process.stderr.read()


def test_sigterm_does_not_wait_for_a_client_that_sends_half_a_request(bundle):
    with served(bundle, "--grace", "0") as (process, url):
        with connected(url) as client:
            client.sendall(
                b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )
            assert client.recv(99).startswith(b"HTTP/1.1 100")  # the body is waited for
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0
        assert "Traceback" not in process.stderr.read()


class Answerer:
    """So many requests run and wait."""

    def __init__(self, num_running, num_waiting):
        self.num_running, self.num_waiting = num_running, num_waiting
        self.is_closed = False

    def close(self):
        self.is_closed = True


def stopping(answerer, grace_s=10.0):
    told, left = [], []
    made = Shutdown(answerer, grace_s, told.append, lambda: left.append(True))
    return made, told, left


@pytest.mark.parametrize("number", SIGNALS)
def test_it_is_due_when_all_is_answered_or_the_grace_is_over(number):
    answerer = Answerer(2, 1)
    made, told, left = stopping(answerer)
    with made.hearing():
        assert not made.is_due(0)
        assert not answerer.is_closed
        signal.raise_signal(number)
        assert not made.is_due(1)
        assert answerer.is_closed
        assert told == [
            "draining: 2 requests run, 1 waits; they get 10 s (--grace), new ones status 503; "
            "Ctrl-C again stops at once"
        ]
        assert (made.left_s(1), made.left_s(4), made.left_s(20)) == (10, 7, 0)
        assert not made.is_due(10.9)
        assert made.is_due(11)
        answerer.num_running = answerer.num_waiting = 0
        assert made.is_due(2)
    assert (len(told), left) == (1, [])


def test_a_second_signal_leaves_at_once_or_when_clients_are_told():
    made, _, left = stopping(Answerer(1, 0))
    with made.hearing():
        signal.raise_signal(signal.SIGINT)
        assert not made.is_due(0)
        signal.raise_signal(signal.SIGTERM)
        assert made.is_due(0)
        assert left == []
        made.end()
        assert left == [True]
    made, _, left = stopping(Answerer(0, 0))
    with made.hearing():
        signal.raise_signal(signal.SIGINT)
        assert made.is_due(0)
        made.end()
        assert left == []
        signal.raise_signal(signal.SIGINT)  # while the model is closed
        assert left == [True]


def test_a_server_that_is_still_loading_ends_at_once(bundle, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(LOADS_FOR_EVER)
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{known}" if known else str(tmp_path))
    command = [*MODULE, "serve", str(bundle), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = line_with(process, "requests to").split("requests to ")[1].split()[0]
            line_with(process, "opening")
            assert httpx.get(f"{url}/health", timeout=600).status_code == 503
            process.send_signal(signal.SIGTERM)
            assert process.wait(600) == 0
        finally:
            process.kill()
