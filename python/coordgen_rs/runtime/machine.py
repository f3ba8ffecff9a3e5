"""What the system tells of this machine and of this process: cores, processor, memory, limits.

In: the system. Out: facts, each with a way for Linux and Android, for Windows, and for others of
POSIX; 0, an empty string or None where a system does not tell. It changes nothing but the record of
the peak.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

_MOST_ON_FEW_CORES = 64
"""Threads that any machine may be asked for."""
_PROC = Path("/proc")
"""The directory of process information on Linux and Android."""
_CGROUP = Path("/sys/fs/cgroup")
"""The directory of Linux's control groups: what a container's process may use."""


def usable_cores() -> int:
    """Number of whole cores that this process may use, at least 1: affinity, less a quota."""
    # Only Linux and Android tell which they are.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min([cores or 1, *map(int, _quotas())]))


def most_threads() -> int:
    """Most threads that may be asked for: far more than cores, and a step would never end.

    They wait for each other by spinning, so each that has no core of its own takes time from those
    that compute.
    """
    return max(_MOST_ON_FEW_CORES, 4 * (os.cpu_count() or 1))


def cpu_name() -> str:
    """The processor's name, or names; at least its architecture."""
    lines = _read("cpuinfo")
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    return ", ".join(sorted(names)) or platform.processor() or platform.machine()


def cpu_model() -> str:
    """A text that tells processors with different instructions apart."""
    lines = {line for line in _read("cpuinfo") if line.startswith(("model name", *_FEATURES))}
    return "".join(sorted(lines)) or platform.processor()


def cpu_features() -> set[str]:
    """Instructions by the names that Linux and Android give them; empty elsewhere."""
    lines = (line for line in _read("cpuinfo") if line.startswith(_FEATURES))
    return {word for line in lines for word in line.partition(":")[2].split()}


_FEATURES = "flags", "Features"
"""The line with instructions, on x86-64 and on Arm."""


def memory_bytes() -> int | None:
    """Memory that this process may use: the machine's, or a container's limit.

    None where the system does not tell.
    """
    if sys.platform == "win32":
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        is_told = _windows().GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.total) if is_told else None
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    return min([memory, *_memory_limits()])


def resident_bytes() -> int:
    """Resident memory of this process, shared pages included; 0 where the system does not tell."""
    if sys.platform == "win32":
        return int(_counters().resident)
    return _status("VmRSS:")


def reset_peak() -> bool:
    """Forget the peak of resident memory so far; whether the system can: Linux and Android do."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int:
    """Most resident memory of this process, since `reset_peak` where the system can forget it.

    0 where the system does not tell.
    """
    if sys.platform == "win32":
        return int(_counters().peak)
    if found := _status("VmHWM:"):
        return found
    try:
        import resource
    except ModuleNotFoundError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _quotas() -> Iterator[float]:
    """Cores' worth of time that the groups of this process may take."""
    for group in _groups("cpu"):
        told = _words(group / "cpu.max") or [
            *_words(group / "cpu.cfs_quota_us"),  # version 1: -1 for none
            *_words(group / "cpu.cfs_period_us"),
        ]
        with suppress(ValueError):  # "max", or nothing
            quota, period = map(int, told)
            if quota > 0 and period > 0:
                yield quota / period


def _memory_limits() -> Iterator[int]:
    """Most bytes of the groups of this process."""
    for group in _groups("memory"):
        told = _words(group / "memory.max") or _words(group / "memory.limit_in_bytes")
        with suppress(ValueError):
            (limit,) = map(int, told)
            if limit > 0:
                yield limit


def _groups(controller: str) -> Iterator[Path]:
    """The directories that may limit this process: its group's, and those above it.

    A container sees its own group as the topmost directory, whatever its path is called outside.
    """
    for line in _read("self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            tops = [_CGROUP, _CGROUP / "unified"]
        elif controller in controllers.split(","):
            tops = [_CGROUP / controllers, _CGROUP / controller]
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        below = [] if ".." in inner.parts else [inner, *inner.parents]
        for top in tops:
            yield top
            yield from (top / it for it in below)


def _words(path: Path) -> list[str]:
    """The words of a file; none where it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def _read(name: str) -> list[str]:
    """The lines of a file of `_PROC`; none where there is no such file."""
    try:
        return os.fsdecode((_PROC / name).read_bytes()).splitlines()
    except OSError:
        return []


def _status(field: str) -> int:
    lines = [line for line in _read("self/status") if line.startswith(field)]
    return sum(1024 * int(line.split()[1]) for line in lines)


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 6),
    )


class _Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of Windows."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("resident", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 6),
    )


def _windows() -> Any:
    return ctypes.windll.kernel32  # type: ignore[attr-defined, unused-ignore]


def _counters() -> _Counters:
    """The memory counters of this process; zeros where Windows refuses."""
    counters = _Counters(size=ctypes.sizeof(_Counters))
    kernel = _windows()
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    process = ctypes.c_void_p(kernel.GetCurrentProcess())
    kernel.K32GetProcessMemoryInfo(process, ctypes.byref(counters), counters.size)
    return counters
