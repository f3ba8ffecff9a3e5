"""What the system tells: read on Linux, and on a Windows and a macOS that stand in its place."""

import ctypes
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordgen_rs.cli.commands import doctor
from coordgen_rs.lab.bench.energy_and_memory import stage_peaks
from coordgen_rs.lab.bench.workbench import Settings
from coordgen_rs.runtime import machine

CPUINFO = """\
processor : 0
model name : Fast
flags : sse avx2 fma
processor : 1
model name : Fast
flags : sse avx2 fma
"""
ANDROID = """\
processor : 0
BogoMIPS : 38.40
Features : fp asimd asimddp i8mm
"""


@pytest.fixture
def proc(monkeypatch, tmp_path):
    """A folder in place of /proc, empty at first."""
    (tmp_path / "self").mkdir()
    monkeypatch.setattr(machine, "_PROC", tmp_path)
    return tmp_path


@pytest.fixture
def kernel(monkeypatch, proc):
    """Windows, whose kernel tells what a test sets."""

    def fill_status(status):
        status._obj.total = 16 << 30
        return int(status._obj.length == 64)

    def fill_counters(process, counters, size):
        assert (process.value, size) == (1 << 40, 72)
        counters._obj.resident, counters._obj.peak = 5 << 20, 7 << 20
        return 1

    def current():
        return 1 << 40

    kernel = SimpleNamespace(
        GlobalMemoryStatusEx=fill_status,
        K32GetProcessMemoryInfo=fill_counters,
        GetCurrentProcess=current,
    )
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(platform, "processor", lambda: "ARMv8 Family 8")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(os, "sysconf", raising=False)
    return kernel


def test_linux_names_its_processor_and_what_it_can_do(proc):
    (proc / "cpuinfo").write_text(CPUINFO)
    assert machine.cpu_name() == "Fast"
    assert machine.cpu_features() == {"sse", "avx2", "fma"}
    assert machine.cpu_model() == "flags : sse avx2 fmamodel name : Fast"


GROUPS = {
    "v2": ("0::/\n", ""),
    "v2 within groups": ("0::/kubepods/pod\n", "kubepods/pod"),
    "v2 above": ("0::/kubepods/pod\n", "kubepods"),
    "v2 of another name outside": ("0::/../host/docker\n", ""),
    "v1": ("3:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n0::/\n", "{}/docker/a"),
    "v1 with the container on top": ("3:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n", "{}"),
}
"""What /proc/self/cgroup says, and the directory of the group, `{}` being a controller's."""


@pytest.fixture(params=GROUPS)
def limited(request, proc, monkeypatch):
    """Sets the limits of this process, by the name and the text of a file of version 1 or 2."""
    told, place = GROUPS[request.param]
    top = proc / "cgroup"
    monkeypatch.setattr(machine, "_CGROUP", top)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    pages = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 1 << 22}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
    (proc / "self" / "cgroup").write_text(told)

    def write(cpu, memory):
        first = request.param.startswith("v1")
        files = {("memory", "memory.limit_in_bytes" if first else "memory.max"): memory}
        if first:
            quota, period = cpu.split()
            files["cpu,cpuacct", "cpu.cfs_quota_us"] = "-1" if quota == "max" else quota
            files["cpu,cpuacct", "cpu.cfs_period_us"] = period
        else:
            files["cpu", "cpu.max"] = cpu
        for (controller, name), text in files.items():
            path = top / place.format(controller) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")

    return write


@pytest.mark.parametrize(
    ("cpu", "cores"), [("50000", 1), ("150000", 1), ("200000", 2), ("900000", 4), ("max", 4)]
)
def test_a_container_s_quota_is_whole_cores_and_at_least_one(limited, cpu, cores):
    limited(f"{cpu} 100000", "8589934592")
    assert machine.usable_cores() == cores
    assert doctor.facts()["machine"]["cores"] == cores


def test_a_container_s_memory_is_its_limit(limited):
    assert machine.memory_bytes() == 16 << 30
    limited("max 100000", str(2 << 30))
    assert machine.memory_bytes() == doctor.facts()["machine"]["memory_bytes"] == 2 << 30
    limited("max 100000", str(1 << 62))  # version 1 tells so of none
    assert machine.memory_bytes() == 16 << 30
    limited("max 100000", "nonsense")
    assert machine.memory_bytes() == 16 << 30
    assert machine.usable_cores() == 4


@pytest.fixture
def groups(proc, monkeypatch):
    """Tells this process's group by bytes; its directory."""
    monkeypatch.setattr(machine, "_CGROUP", proc / "cgroup")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)

    def of(name):
        (proc / "self" / "cgroup").write_bytes(b"0::/" + os.fsencode(name) + b"\n")
        try:
            (proc / "cgroup" / name).mkdir(parents=True)
        except OSError:
            pytest.skip("the file system takes no such name")
        return proc / "cgroup" / name

    return of


def test_what_a_group_above_allows_is_all_there_is(groups):
    group = groups("pod/one")
    (group.parent / "cpu.max").write_text("200000 100000\n")
    (group / "cpu.max").write_text("600000 100000\n")
    assert machine.usable_cores() == 2


def test_a_group_may_be_called_anything(groups):
    (groups(os.fsdecode(b"caf\xe9")) / "cpu.max").write_text("200000 100000\n")  # no UTF-8
    assert machine.usable_cores() == 2


def test_android_tells_what_its_processor_can_do(proc):
    (proc / "cpuinfo").write_text(ANDROID)
    assert machine.cpu_features() == {"fp", "asimd", "asimddp", "i8mm"}
    assert "i8mm" in machine.cpu_model()
    assert machine.cpu_name() == (platform.processor() or platform.machine())


def test_linux_tells_of_memory(proc):
    (proc / "self" / "status").write_text("VmHWM:\t  300 kB\nVmRSS:\t  200 kB\n")
    assert machine.resident_bytes() == 200 * 1024
    assert machine.peak_resident_bytes() == 300 * 1024
    assert machine.reset_peak()
    assert (proc / "self" / "clear_refs").read_text() == "5"


def test_windows_tells_of_memory_and_of_its_processor(kernel):
    assert machine.memory_bytes() == 16 << 30
    assert (machine.resident_bytes(), machine.peak_resident_bytes()) == (5 << 20, 7 << 20)
    assert machine.cpu_name() == machine.cpu_model() == "ARMv8 Family 8"
    assert machine.cpu_features() == set()
    assert machine.usable_cores() == os.cpu_count()
    kernel.GlobalMemoryStatusEx = lambda status: 0
    assert machine.memory_bytes() is None


@pytest.mark.skipif(sys.platform == "win32", reason="no module resource here")
@pytest.mark.parametrize(("system", "unit"), [("darwin", 1), ("freebsd14", 1024)])
def test_without_proc_the_peak_is_the_kernel_s_own(monkeypatch, proc, system, unit):
    import resource

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=4096))
    assert machine.peak_resident_bytes() == 4096 * unit
    assert machine.resident_bytes() == 0


def test_a_peak_that_cannot_be_forgotten_is_of_no_stage(proc):
    (proc / "self" / "clear_refs").mkdir()
    assert not machine.reset_peak()
    assert set(stage_peaks(Settings(Path("nowhere")), "plain").values()) == {0}


def test_here_the_peak_is_no_less_than_what_is_resident():
    assert machine.usable_cores() >= 1
    assert machine.peak_resident_bytes() >= machine.resident_bytes() // 2
