"""Calls here, in processes of their own and on Ray: the same results, whatever ends a worker."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fleet_tasks
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli.terminal.text import parse_bytes
from coordgen_rs.errors import HistoryError, OptionError
from coordgen_rs.lab.fleet import tasks
from coordgen_rs.lab.fleet.build import build
from coordgen_rs.lab.fleet.tasks import (
    OwnProcessError,
    Processes,
    RayTasks,
    Sequential,
    TaskLostError,
    in_own_process,
)
from fleet_records import records, write_jsonl
from fleet_tasks import Killing, Unreadable, die, refuse, square

SUPPORT = str(Path(fleet_tasks.__file__).parent)
WITH_SUPPORT = os.pathsep.join(filter(None, (SUPPORT, os.environ.get("PYTHONPATH"))))
"""For processes that import what is called."""


@pytest.fixture(scope="module")
def ray_tasks():
    pytest.importorskip("ray", reason="needs the extra ray")
    with pytest.MonkeyPatch.context() as patched:  # workers import what is called
        patched.setenv("PYTHONPATH", WITH_SUPPORT)
        on_ray = RayTasks("local:2")
        yield on_ray
        on_ray.close()


@pytest.fixture(params=["processes", "ray"])
def any_tasks(request):
    return Processes(2) if request.param == "processes" else request.getfixturevalue("ray_tasks")


def test_calls_run_one_after_the_other_or_side_by_side_with_the_same_results(any_tasks):
    assert list(Sequential().run(square, [3, 1, 2])) == [(0, 9), (1, 1), (2, 4)]
    found = list(any_tasks.run(square, range(20)))
    assert sorted(found) == list(Sequential().run(square, range(20)))


def test_an_error_of_a_call_is_raised_as_it_is(any_tasks):
    with pytest.raises(HistoryError, match="number 7 is wrong"):
        list(any_tasks.run(refuse, [7, 7]))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["interrupt", "kill"])
def test_no_process_outlives_its_parent(how, tmp_path):
    script = (
        "from pathlib import Path; from coordgen_rs.lab.fleet.tasks import Processes\n"
        "from fleet_tasks import wait_for_ever\n"
        "if __name__ == '__main__':\n"
        f"    list(Processes(2).run(wait_for_ever, [{str(tmp_path)!r}] * 2))\n"
    )
    (tmp_path / "run.py").write_text(script)
    begun = subprocess.Popen(
        [sys.executable, tmp_path / "run.py"],
        env=os.environ | {"PYTHONPATH": WITH_SUPPORT},
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(workers := list(tmp_path.glob("*.pid"))) < 2:
        assert begun.poll() is None
    begun.send_signal(how)
    said = begun.communicate(timeout=600)[1]
    for worker in workers:
        while is_running(int(worker.stem)):
            pass
    assert said.count("Traceback") == (how == signal.SIGINT), "the parent's own"


def is_running(process_id):
    try:
        return " Z" not in Path(f"/proc/{process_id}/stat").read_text().partition(")")[2][:3]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_killed_process_is_told():
    with pytest.raises(TaskLostError, match="a process was killed"):
        list(Processes(1).run(die, [1]))


def test_a_worker_that_lacks_the_package_is_told_so(ray_tasks):
    with pytest.raises(TaskLostError, match="install the same version on every worker"):
        list(ray_tasks.run(Unreadable(), [1]))


def test_a_history_built_on_ray_has_the_bytes_of_one_built_here(ray_tasks, bundle_of, tmp_path):
    bundle = Bundle.open(bundle_of("embedded-draft", "fp32"))
    found = records(90)
    files = [write_jsonl(tmp_path / f"{at}.jsonl", found[at : at + 40]) for at in (0, 25, 50)]
    notes = tmp_path / "notes"
    notes.mkdir()
    here = build(tmp_path / "here", files, bundle)
    there = build(tmp_path / "there", files, bundle, tasks=Killing(ray_tasks, notes))
    assert list(notes.iterdir())  # workers were killed
    assert here == there
    names = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "there").iterdir())
    for name in names:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


def test_more_cores_than_a_machine_has_are_refused_at_once(ray_tasks, monkeypatch):
    monkeypatch.setattr(RayTasks, "close", lambda self: None)  # the cluster is the others' too
    with pytest.raises(OptionError, match=r"takes 3 cores, but no machine there has more than 2"):
        RayTasks("local:2", cores=3)


def test_a_cluster_that_starts_machines_when_asked_may_have_none_yet(ray_tasks, monkeypatch):
    head = {"Alive": True, "Resources": {"memory": 1e9}}  # takes no tasks itself
    monkeypatch.setattr("ray.nodes", lambda: [head])
    assert list(RayTasks("local:2", cores=2).run(square, [3])) == [(0, 9)]


def test_a_call_that_kills_every_worker_is_a_lost_task(ray_tasks, monkeypatch):
    monkeypatch.setattr(tasks, "RETRIES", 0)  # each costs the start of a worker
    with pytest.raises(TaskLostError, match="lost a task"):
        list(ray_tasks.run(die, [1]))


@pytest.mark.parametrize("address", ["local:0", "local:many"])
def test_a_wrong_number_of_workers_is_refused(address):
    pytest.importorskip("ray", reason="needs the extra ray")
    with pytest.raises(OptionError, match="number of workers"):
        RayTasks(address)


def test_another_process_returns_and_raises_what_the_call_does():
    assert in_own_process(os.getpid) != os.getpid()
    assert in_own_process(parse_bytes, "2K") == parse_bytes("2K")
    with pytest.raises(OptionError, match="much"):
        in_own_process(parse_bytes, "much")


def test_a_process_that_dies_is_named():
    with pytest.raises(OwnProcessError, match="raise_signal ended with -9"):
        in_own_process(signal.raise_signal, signal.SIGKILL)


def test_no_code_of_the_working_directory_is_run(tmp_path, monkeypatch):
    for name in ("numpy", "pickle", "json", "onnxruntime", "coordgen_rs"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    assert in_own_process(parse_bytes, "2K") == parse_bytes("2K")
    assert not (tmp_path / "executed").exists()
