"""Qualcomm's QNN provider of ONNX Runtime: registered once, its devices, and sessions on it.

In: the path of a graph, a chip and options. Out: a session that runs wholly on the HTP: a node that
the HTP cannot run is an error, never a silent run on CPU. Off a Snapdragon, on Linux x86-64, the
same library is Qualcomm's emulator of the HTP: the same arithmetic as the device, but slow.
Everything else in coordgen_rs works without `onnxruntime-qnn`.
"""

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime

from coordgen_rs.bundle.qnn import Soc
from coordgen_rs.errors import ProviderError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.runtime.onnx_runtime import set_threads, shared_options
from coordgen_rs.runtime.qnn.options import QnnOptions

PROVIDER = "QNNExecutionProvider"

_LEAST_GLIBC = {"x86_64": (2, 35), "aarch64": (2, 34)}
"""The glibc that the wheels for Linux are built for."""

_lock = threading.Lock()
_registered: ModuleType | None = None
_has_printed = False


@dataclass(frozen=True)
class QnnVersion:
    """Versions that a context binary depends on.

    Attributes:
        provider: Version of onnxruntime-qnn.
        qnn: Version of Qualcomm's libraries in it.
    """

    provider: str
    qnn: str


def version() -> QnnVersion:
    """The installed versions.

    Raises:
        ProviderError: onnxruntime-qnn is not installed, or cannot run here.
    """
    library = _library()
    return QnnVersion(library.__version__, library.build_and_package_info.qnn_version)


def is_emulator() -> bool:
    """Whether the HTP here is Qualcomm's emulator: on x86-64 it always is."""
    return platform.machine().lower() in ("x86_64", "amd64")


def devices() -> list[Any]:
    """The provider's NPUs as ONNX Runtime describes them; of the emulator, what it runs on.

    Raises:
        ProviderError: There is none, onnxruntime-qnn is not installed, or it cannot run here.
    """
    _library()
    found = [device for device in onnxruntime.get_ep_devices() if device.ep_name == PROVIDER]
    if not found:
        raise ProviderError("the QNN provider found no device on this machine")
    npu = onnxruntime.OrtHardwareDeviceType.NPU
    return [device for device in found if device.device.type == npu] or found


def check_available() -> None:
    """Check that sessions can be made here at all.

    Raises:
        ProviderError: onnxruntime-qnn or its library for the HTP is missing, or cannot run here, or
            there is no device.
    """
    _backend()
    devices()


def qnn_session(
    model: Path,
    soc: Soc,
    options: QnnOptions | None = None,
    entries: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> onnxruntime.InferenceSession:
    """Load one graph on the HTP, compiling it if it is not compiled yet.

    Args:
        model: An ONNX file, or one that refers to a context binary.
        soc: The chip to compile for.
        options: How to compile and run.
        entries: Further configuration entries of the session (`ep.context_enable`, ...).
        content: The model itself, where it is not in a file; `model` then only names it.

    Raises:
        ProviderError: onnxruntime-qnn is missing or cannot run here, or it cannot load the graph;
            if it rejects a node, the message names it.
    """
    provider = {"backend_path": str(_backend())}
    provider |= (options or QnnOptions()).provider_options(soc)
    set_threads(None)
    session = shared_options()
    session.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    for name, value in (entries or {}).items():
        session.add_session_config_entry(name, value)
    found = devices()
    try:
        session.add_provider_for_devices(found, provider)
        with _stdout_kept_clean():
            return onnxruntime.InferenceSession(content or str(model), session)
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        refused = _refused_nodes(model, found, provider) if "fallback" in str(error) else []
        reason = f"the HTP cannot run {', '.join(refused)}" if refused else f"{error}"
        raise ProviderError(f"{model}: the QNN provider cannot load it: {reason}") from error


@contextmanager
def _stdout_kept_clean() -> Iterator[None]:
    """Drop the line that the emulator prints when its first session is made.

    The C library's own stream is exchanged, not the file descriptor: what Python prints meanwhile,
    in this thread or another, is printed.
    """
    global _has_printed
    if _has_printed or not is_emulator() or sys.platform != "linux":
        yield
        return
    with _lock:
        library = ctypes.CDLL(None)
        library.fopen.restype = ctypes.c_void_p
        stdout = ctypes.c_void_p.in_dll(library, "stdout")
        kept = stdout.value
        # Never closed: another thread may be about to print on it.
        stdout.value = library.fopen(os.devnull.encode(), b"w")
        try:
            yield
        finally:
            stdout.value = kept
            _has_printed = True


def _refused_nodes(model: Path, found: list[Any], provider: dict[str, str]) -> list[str]:
    """Names and operators of the nodes that would fall back to the CPU."""
    session = shared_options()
    session.log_severity_level = 4
    session.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session.add_provider_for_devices(found, provider)
    try:
        loaded = onnxruntime.InferenceSession(str(model), session)
    except Exception:  # then the first error has to do
        return []
    return [
        f"{node.name} ({node.op_type})"
        for part in loaded.get_provider_graph_assignment_info()
        if part.ep_name == "CPUExecutionProvider"
        for node in part.get_nodes()
    ]


def _backend() -> Path:
    path = Path(_library().get_qnn_htp_path())
    if not path.exists():
        raise ProviderError(f"the QNN backend library {path} is missing: reinstall onnxruntime-qnn")
    return path


def _library() -> ModuleType:
    """onnxruntime_qnn, registered with ONNX Runtime."""
    global _registered
    with _lock:
        if _registered is None:
            _registered = _register()
        return _registered


def _register() -> ModuleType:
    _check_glibc()
    try:
        import onnxruntime_qnn
    except ModuleNotFoundError as error:
        raise ProviderError(
            f"the QNN provider is not installed: {how_to_install('qnn')}"
        ) from error
    try:
        onnxruntime.register_execution_provider_library(
            PROVIDER, onnxruntime_qnn.get_library_path()
        )
    except Exception as error:  # ONNX Runtime raises its own unrelated classes
        raise ProviderError(f"the QNN provider cannot be loaded: {error}") from error
    library: ModuleType = onnxruntime_qnn
    return library


def _check_glibc() -> None:
    name, number = platform.libc_ver()
    least = _LEAST_GLIBC.get(platform.machine())
    if name == "glibc" and least and tuple(map(int, number.split(".")[:2])) < least:
        wanted = ".".join(map(str, least))
        raise ProviderError(f"the QNN provider needs glibc {wanted} or newer, here is {number}")
