"""What the system tells of this machine and of this process: cores, processor, memory.

In: the system. Out: facts, each with a way for Linux and Android, for Windows, and for others of
POSIX; 0, an empty string or None where a system does not tell. It changes nothing but the record of
the peak.
"""

import ctypes
import os
import platform
import sys
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
"""The directory of process information on Linux and Android."""


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    # Only Linux and Android tell which they are.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    """Memory of the machine; None where the system does not tell."""
    if sys.platform == "win32":
        status = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        is_told = _windows().GlobalMemoryStatusEx(ctypes.byref(status))
        return int(status.total) if is_told else None
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


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


def _read(name: str) -> list[str]:
    """The lines of a file of `_PROC`; none where there is no such file."""
    try:
        return (_PROC / name).read_text().splitlines()
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
