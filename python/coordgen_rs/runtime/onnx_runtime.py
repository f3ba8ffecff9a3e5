"""ONNX Runtime in this process: one thread pool and one arena for all sessions, and their runs.

A pool per session with spinning workers makes a 32-row int4 step twice as slow: the workers of the
idle sessions burn the cores that the running one needs. So every session shares the global pool.

Weights come and go with their sessions. So they are kept out of the arena, which never shrinks, and
out of glibc's heap, which would end up with more holes than weights.

A thread that nobody joins may be inside ONNX Runtime as the interpreter goes away. Taking the
interpreter back then ends the thread in the middle of C++, and the process with it. So the
interpreter's end waits for runs (`run_native`).

Once the global pool exists, ONNX Runtime rejects sessions with their own pool: other users of ONNX
Runtime in the same process must set `SessionOptions.use_per_session_threads = False`.
"""

import atexit
import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs._core import __file__ as extension_file
from coordgen_rs.errors import OptionError, ProviderError, arguments
from coordgen_rs.runtime.machine import most_threads, usable_cores
from coordgen_rs.store.background import OpenedHere

_M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
_LARGE_BYTES = 1 << 20
_GLIBC = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None

KERNEL_DOMAIN = "ai.coordgen"
"""Of the operators that graphs have from this package's extension."""

_lock = threading.Lock()
_opened = OpenedHere()
_threads: int | None = None

_UNTIL_LOOKED_S = 0.001
_under_way: list[tuple[int, object]] = []
"""The process and a mark of each run: a fork does not have the threads of those before it."""

waited_for: set[int] = set()
"""Threads whose end is waited for by others: they need not end here."""

_ending: list[int] = []
"""The thread that ends the interpreter, once it does."""


def set_threads(threads: int | None) -> int:
    """Set the number of compute threads of the process; later calls must ask for the same number.

    Args:
        threads: Number of threads, at most `most_threads()`; None for the number set before, or
            else one per usable core.

    Returns:
        The number in force.

    Raises:
        OptionError: `threads` is out of range, or differs from what the process already uses (ONNX
            Runtime creates its global pool once).
        ForkedError: This process is a fork of one that computes: ONNX Runtime's threads are there.
    """
    global _threads
    if _threads is not None:
        _opened.check("target")
    if threads is not None:
        threads = arguments.count("threads", threads, most=most_threads())
    with _lock:
        if _threads is None:
            wanted = threads or usable_cores()
            try:
                onnxruntime.set_global_thread_pool_sizes(wanted, 1)
            except Exception as error:
                raise OptionError(
                    f"the thread pool cannot be set to {wanted} threads: another part of this "
                    f"process created ONNX Runtime's global pool first ({error})"
                ) from error
            arena = onnxruntime.OrtMemoryInfo(
                "Cpu",
                onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
                0,
                onnxruntime.OrtMemType.DEFAULT,
            )
            onnxruntime.create_and_register_allocator(arena, None)
            _give_large_memory_back()
            _threads = wanted
        elif threads not in (None, _threads):
            raise OptionError(
                f"threads is {threads}, but this process already computes on {_threads}: ONNX "
                "Runtime creates its thread pool once, so use another process"
            )
        return _threads


def _give_large_memory_back() -> None:
    """Make glibc map large pieces one by one, so that they are returned when freed.

    By default it raises its threshold to the size freed last, up to 32 MB. After switching six
    blocks of 80 MB back and forth, 1,307 MB were resident; with this call it is 861 MB.
    """
    if _GLIBC is not None:
        _GLIBC.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def give_small_memory_back() -> None:
    """Make glibc return the free pages between small pieces that are in use.

    Each session that is opened and closed leaves half a kilobyte: 2.8 MB after 6,000.
    """
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)


def shared_options() -> onnxruntime.SessionOptions:
    """Options of a session on the shared pool (`set_threads` first) that logs errors only."""
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    options.log_severity_level = 3
    return options


def ort_value(array: NDArray[np.generic]) -> onnxruntime.OrtValue:
    """`array` as ONNX Runtime reads and writes it: the same memory."""
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


@cache
def kernel_library() -> Path:
    """The library with the kernels of graphs (`src/ort/mod.rs`): the extension itself.

    Raises:
        ProviderError: ONNX Runtime cannot load it.
    """
    library = Path(extension_file)
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(str(library))
    except Exception as error:  # ONNX Runtime has no class of its own for what the loader says
        raise ProviderError(
            f"ONNX Runtime cannot load the kernels of this package from {library}: {error}"
        ) from error
    return library


def kernel_build() -> str:
    """The build of the kernels: another build's may round otherwise."""
    found = kernel_library().stat()
    return f"kernels {found.st_size} {found.st_mtime_ns}"


def cpu_session(
    model: Path | bytes, weights: Path | None = None, *, as_written: bool = False
) -> onnxruntime.InferenceSession:
    """Load one graph on the CPU provider, on the shared pool and arena.

    Args:
        model: A file or its content.
        weights: The directory of the files that hold its weights; None for a file's own.
        as_written: Whether products with 4-bit weights in blocks, which a graph for another
            processor has, are computed in float: ONNX Runtime would round what they multiply to 8
            bits, which takes a third of the time.
    """
    options = shared_options()
    if weights is not None:
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(weights)
        )
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if as_written:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    options.register_custom_ops_library(str(kernel_library()))
    source = model if isinstance(model, bytes) else str(model)
    # Its fallback would print to stdout, and try the same provider again.
    return onnxruntime.InferenceSession(
        source, options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def run_native(run: Callable[..., object], *operands: object) -> None:
    """Call `run`, unless the interpreter is about to end: then this thread ends instead.

    Args:
        run: Native code, which lets go of the interpreter.
        operands: What it is called with.

    Raises:
        SystemExit: Another thread ends the interpreter; nothing is called.
    """
    mark = os.getpid(), object()
    try:
        _under_way.append(mark)  # before the look: who ends the interpreter does it after
        if _ending and threading.get_ident() not in (_ending[0], *waited_for):
            raise SystemExit
        run(*operands)
    finally:
        if mark in _under_way:  # it is not, if an interrupt came before
            _under_way.remove(mark)


def _wait_for_runs() -> None:
    _ending.append(threading.get_ident())
    while any(process == os.getpid() for process, _ in list(_under_way)):
        time.sleep(_UNTIL_LOOKED_S)


atexit.register(_wait_for_runs)
