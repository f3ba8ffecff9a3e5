"""Threads that nobody joins are at work while the interpreter exits: the process ends well."""

import subprocess
import sys

import pytest

GENERATES = """
import threading
from coordgen_rs import Model
model = Model.open({bundle!r}, threads=1, history=None, {options})
begun = threading.Event()

def generate():
    while True:
        for piece in model.stream("Once upon a time", max_new_tokens=40):
            begun.set()

threading.Thread(target=generate, daemon=True).start()
begun.wait()
print("over")
"""

DRAFTS = """
import threading
import numpy as np
from coordgen_rs import HostDrafter
begun, text = threading.Event(), np.arange(20_000) % 50

def draft():
    drafter = HostDrafter(50)
    while True:
        drafter.begin(text)
        begun.set()

for _ in range(2):
    threading.Thread(target=draft, daemon=True).start()
begun.wait()
print("over")
"""


def end(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


@pytest.mark.parametrize("options", ["", "parallel=2", "draft='plain'"])
def test_a_daemon_that_generates_ends_with_the_interpreter(bundle_of, options):
    end(GENERATES.format(bundle=str(bundle_of("embedded", "fp32")), options=options))


def test_a_daemon_that_drafts_ends_with_the_interpreter():
    for _ in range(2):
        end(DRAFTS)


def test_what_is_registered_for_the_exit_may_generate(bundle_of):
    code = f"""
import atexit
def generate():
    with Model.open({str(bundle_of("embedded", "fp32"))!r}, threads=1) as model:
        assert model.generate("Once", max_new_tokens=3).text
    print("over")
atexit.register(generate)  # so that it is called last
from coordgen_rs import Model
"""
    end(code)
