"""What the system tells: read on Linux, and on a Windows and a macOS that stand in its place."""

import ctypes
import os
import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from coordgen_rs.target import machine
from coordgen_rs.tools.bench.measuring.settings import Settings
from coordgen_rs.tools.bench.sections.memory import stage_peaks

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
