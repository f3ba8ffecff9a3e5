"""A fork of a process lacks its threads: what needs them says so by name, and nothing hangs.

Children that have ONNX Runtime end by `os._exit`, as those of multiprocessing do: its own clean-up
waits for its threads.
"""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

BEGIN = """
import os, sys, threading
import numpy as np
from coordgen_rs import _core
from coordgen_rs.errors import CoordgenError, ForkedError

def refused(*calls):
    for call in calls:
        try:
            call()
        except ForkedError as error:
            assert "fork" in str(error)
        else:
            raise AssertionError("not refused")
"""

FORK = """
sys.stdout.flush()
child = os.fork()
if child:
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
"""


def run(before, in_child, after=""):
    """The output of a process that does `before`, forks, and waits for its child."""

    def indented(code):
        return "".join(f"    {line}\n" for line in code.splitlines())

    code = f"{BEGIN}\n{before}\n{FORK}{indented(after)}else:\n{indented(in_child)}    pass\n"
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


SWITCHER = """
class Store:
    def load(self, block, graph): pass
    def release(self, block, graph): pass

switcher = _core.Switcher(Store(), [_core.BlockCost.guessed(1, 1, 1)] * 2, 1, 1, strategy="sync")
switcher.ensure("prefill")
switcher.begin(1)
"""

AGAIN = """
for block in 0, 1:
    switcher.enter(block)
    switcher.leave()
print(switcher.finish().strategy)
"""


def test_a_switcher_refuses_every_call_and_goes_on_in_the_process_that_made_it():
    in_child = """
refused(
    lambda: switcher.enter(0), lambda: switcher.try_enter(0), switcher.leave, switcher.finish,
    lambda: switcher.begin(1), switcher.begin_pass, switcher.stand_by, switcher.resident,
    lambda: switcher.ensure("decode"), lambda: switcher.only("decode"), switcher.settle,
    lambda: switcher.step_graph(0), lambda: switcher.costs, lambda: switcher.is_streaming,
    lambda: switcher.keeps_both, lambda: switcher.memory_budget,
)
switcher.cancel()
switcher.close()
del switcher
"""
    assert run(SWITCHER, in_child, AGAIN) == "sync\n"


def test_a_fork_in_the_middle_of_a_load_ends():
    before = """
loading, go_on = threading.Event(), threading.Event()

class Store:
    def load(self, block, graph):
        loading.set()
        go_on.wait()
    def release(self, block, graph): pass

switcher = _core.Switcher(Store(), [_core.BlockCost.guessed(1, 1, 1)], 1, 1, strategy="single")
switcher.begin(1)
loading.wait()
"""
    after = """
go_on.set()
print(switcher.enter(0))
"""
    assert run(before, "refused(lambda: switcher.enter(0))", after) == "decode\n"


SESSION = """
from coordgen_rs import OrtSession, generate, open_session, plain
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.runtime.cpu import CpuDevice
bundle = Bundle.open({bundle!r})
session = OrtSession(CpuDevice(bundle, share_graphs=False), threads=2, {options})
answer = [step.token_ids for step in plain(session, [1, 5, 9], max_new_tokens=3)]
"""

BUDGET = (
    "memory_budget=max(bundle.manifest.files[b.weights].num_bytes for b in bundle.manifest.blocks)"
)


@pytest.mark.parametrize("options", ["switch='sync'", BUDGET])
def test_a_session_that_switches_or_streams_is_refused_in_a_fork(bundle_of, options):
    before = SESSION.format(bundle=str(bundle_of("embedded", "fp32")), options=options)
    in_child = """
refused(
    lambda: list(generate(session, [1, 5, 9], max_new_tokens=3)),
    lambda: list(plain(session, [1], max_new_tokens=3)),
    lambda: session.step(session.step_inputs[0]),
    lambda: OrtSession(CpuDevice(bundle)),
)
session.close()
os._exit(0)
"""
    after = """
assert [step.token_ids for step in plain(session, [1, 5, 9], max_new_tokens=3)] == answer
print("same")
"""
    assert run(before, in_child, after) == "same\n"


@pytest.mark.parametrize("parallel", [1, 4])
def test_every_call_of_a_model_is_refused_in_a_fork_while_another_thread_makes_a_step(
    bundle_of, tmp_path, parallel
):
    template = tmp_path / "chat_template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    before = f"""
import asyncio, faulthandler
from coordgen_rs import Model, Regex
model = Model.open(
    {str(bundle_of("embedded", "fp32"))!r},
    threads=2, parallel={parallel}, chat_template={str(template)!r},
)
answer = model.generate("Once", max_new_tokens=3).text
unread, begun = model.stream("Once"), model.stream("Once", max_new_tokens=3)
next(begun)
is_reading, go_on = threading.Event(), threading.Event()
def on_read(num_tokens):
    is_reading.set()
    go_on.wait()
def read():
    model.generate("Once more, in a step of this thread", max_new_tokens=2, on_read=on_read)
thread = threading.Thread(target=read, daemon=True)
if {parallel} == 1:
    begun.close()
thread.start()
is_reading.wait()
"""
    in_child = """
faulthandler.dump_traceback_later(300, exit=True)
dialogue = [{"role": "user", "content": "Once"}]
async def first(stream):
    return await stream.__anext__()
refused(
    lambda: model.generate("Once"),
    lambda: model.generate("Once", grammar=Regex("a+")),
    lambda: next(model.stream("Once")),
    lambda: model.stream_tokens([1, 2]).step(),
    lambda: model.generate_many(["Once", "Twice"]),
    lambda: model.chat(dialogue),
    lambda: next(model.stream_chat(dialogue)),
    lambda: asyncio.run(first(model.astream("Once"))),
    lambda: asyncio.run(model.agenerate("Once")),
    lambda: asyncio.run(first(model.astream_chat(dialogue))),
    lambda: asyncio.run(model.achat(dialogue)),
    lambda: next(unread), lambda: next(begun), begun.step,
)
unread.close()
begun.close()
del unread, begun
model.close()
os._exit(0)
"""
    after = """
go_on.set()
thread.join()
begun.close()
unread.close()
assert model.generate("Once", max_new_tokens=3).text == answer
model.close()
print("same")
"""
    assert run(before, in_child, after) == "same\n"


def test_a_stream_is_refused_in_a_fork_also_while_another_thread_reads_it():
    before = """
from coordgen_rs import Stats
from coordgen_rs.model.request import Events
from coordgen_rs.model.stream import Stream
is_asked = threading.Event()
events = Events(lambda _: is_asked.set(), lambda _: None)
stream = Stream(events, Stats())
thread = threading.Thread(target=lambda: print(list(stream)))
thread.start()
is_asked.wait()
"""
    in_child = """
refused(lambda: next(stream), stream.step)
stream.close()
os._exit(0)
"""
    after = """
events.end(None)
thread.join()
"""
    assert run(before, in_child, after) == "[]\n"


def test_a_drafter_and_its_look_up_table_survive_a_fork():
    before = """
rows, vocab_size = 16, 200_000  # so many that they are read on several threads
inputs = _core.StepInputs(
    np.zeros(rows, np.int64), np.zeros(rows, np.int64), np.zeros((1, 1, rows, 64), np.float32)
)
table = _core.LookupTable()
logits = np.random.default_rng(0).standard_normal((rows, vocab_size), np.float32)
table.learn(logits.argmax(1).astype(np.uint32), logits)
drafter = _core.Drafter([inputs], vocab_size, sources=["lookup-table"], lookup_table=table)
drafter.begin(np.array([1], np.uint32), 50)
drafter.propose(0)
drafter.accept(logits)
"""
    step = """
drafter.propose(1)
drafter.accept(logits)
drafter.begin(np.array([1], np.uint32), 5)
print(len(drafter.draft[0]), table.num_rows > 0)
sys.stdout.flush()
"""
    assert run(before, step, step) == "1 True\n" * 2


def test_a_history_is_refused_in_a_fork_also_while_another_thread_writes(tmp_path):
    before = f"""
from coordgen_rs import History
history = History({str(tmp_path)!r}, fingerprint="f", vocab_size=50)
history.add([1, 2], [3])
has_it, go_on = threading.Event(), threading.Event()
def hold():
    with history._lock:
        has_it.set()
        go_on.wait()
thread = threading.Thread(target=hold)
thread.start()
has_it.wait()
"""
    in_child = """
refused(history.refresh, lambda: history.add([1], [2]))
history.close()
os._exit(0)
"""
    after = """
go_on.set()
thread.join()
history.add([4, 5], [6])
history.close()
print(history.shared.num_recent_tokens)
"""
    assert run(before, in_child, after) == "6\n"


def test_an_energy_meter_is_refused_in_a_fork(tmp_path):
    before = """
from coordgen_rs.lab.energy import EnergyMeter
class Source:
    name, interval_s, shortest_s = "test", 0.001, 0.0
    def read(self): return 1.0
    def joules(self, times_s, readings): return 1.0
meter = EnergyMeter(Source())
meter.start()
"""
    after = "print(meter.stop())"
    assert run(before, "refused(meter.stop, meter.start)", after) == "1.0\n"
