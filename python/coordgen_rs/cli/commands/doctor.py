"""`coordgen doctor`: what this installation and machine can do, and what is missing for what.

In: the packages that are installed, the processor, and a bundle if one is named. Out: a report to
read, or to put into a bug report. It loads no graph and changes nothing.
"""

import argparse
import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coordgen_rs._core import kernel_processor
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import outputs
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.cli.terminal.text import printable
from coordgen_rs.errors import OptionError, ProviderError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.loading.directory import open_bundle, provider_class, unconverted
from coordgen_rs.loading.profile import machine_facts
from coordgen_rs.loading.session import recorded_self_test
from coordgen_rs.runtime.machine import cpu_features, memory_bytes
from coordgen_rs.runtime.onnx_runtime import kernel_library
from coordgen_rs.store.cache import cache_directory

EXAMPLES = """\
examples:
  coordgen doctor
  coordgen doctor bundle          # also what was found when the bundle was first opened here
  coordgen doctor --json          # for a bug report
"""

EXTRAS = {
    "chat": ("prompt_toolkit", "editing lines in coordgen chat"),
    "completion": ("shtab", "completion in shells"),
    "export": ("gguf onnx rich", "converting models"),
    "genai": ("onnx", "folders of ONNX Runtime GenAI"),
    "genie": ("onnx onnxruntime_qnn", "bundles of Qualcomm AI Hub"),
    "grammar": ("llguidance", "answers that follow a schema or pattern"),
    "hub": ("huggingface_hub", "models by name, hf:OWNER/NAME"),
    "parquet": ("pyarrow", "records and tables in Parquet"),
    "plots": ("matplotlib", "plots of benchmarks"),
    "qnn": ("onnxruntime_qnn", "Qualcomm NPUs"),
    "ray": ("ray", "a fleet's history and benchmarks on a cluster"),
    "server": ("starlette uvicorn", "coordgen serve"),
}
"""Name of an extra to the modules that it brings, and what they are for."""

_PACKAGES = ("coordgen-rs", "numpy", "onnxruntime", "tokenizers")
_INSTRUCTIONS = [
    *("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"),  # x86
    *("asimd", "asimddp", "i8mm", "bf16", "sve", "sme"),  # ARM
]
"""Instructions by their names in Linux."""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.path("bundle BUNDLE", nargs="?").help(option.BUNDLE_HELP),
        option.JSON,
    )


def run(options: argparse.Namespace) -> int:
    """Print the report.

    Raises:
        BundleError, BundleDamagedError: There is no bundle, or it cannot be opened; the rest of the
            report is printed.
    """
    found = facts()
    try:
        if options.bundle is not None:
            if unconverted(options.bundle) is not None:
                found["bundle"] = {"path": str(options.bundle), "is_converted": False}
            else:
                with progress() as on_progress:
                    bundle = open_bundle(options.bundle, on_progress=on_progress)
                found["bundle"] = _bundle_facts(bundle)
    finally:
        print(json.dumps(found, indent=2) if options.json else "\n".join(_lines(found)))
    return 0


def facts() -> dict[str, Any]:
    """What can be found out without a model, as JSON."""
    records = cache_directory()
    machine = machine_facts()
    return {
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": {
            **machine,
            "memory_bytes": memory_bytes(),
            "instructions": [it for it in _INSTRUCTIONS if it in cpu_features()],
            **_kernel_facts(),
        },
        "qnn": _qnn_facts(),
        "extras": {
            name: {"for": purpose, "missing": [m for m in modules.split() if find_spec(m) is None]}
            for name, (modules, purpose) in EXTRAS.items()
        },
        "records": {
            "directory": None if records is None else str(records),
            "is_writable": records is not None and _is_writable(records),
        },
    }


def _kernel_facts() -> dict[str, str | None]:
    """The instructions that the kernels use, and why they cannot be loaded."""
    try:
        kernel_library()
    except ProviderError as error:
        return {"kernels": None, "kernels_problem": str(error)}
    return {"kernels": kernel_processor(), "kernels_problem": None}


def _bundle_facts(bundle: Bundle) -> dict[str, Any]:
    """What a bundle is, and what was found when it was first opened here, or why it cannot be."""
    found, problem = None, None
    try:
        found = recorded_self_test(bundle)
    except ProviderError as error:
        problem = str(error)
    manifest = bundle.manifest
    experts = manifest.experts
    facts: dict[str, Any] = {
        "path": str(bundle.path),
        "is_converted": True,
        "provider": manifest.provider,
        "weights": manifest.weights,
        "layers": manifest.described_layers,
        "experts": experts and experts.described(manifest.model.num_layers),
        "widths": manifest.decode_widths,
        "problem": problem,
        "is_tested": found is not None,
    }
    if found is not None:
        facts |= {
            "exact_widths": list(found.exact_widths),
            "exact_after_prefill": found.exact_prefill,
            "exact_at_any_rows": found.exact_any_rows,
            "step_ms": {width: round(us / 1000, 3) for width, us in found.step_us.items()},
        }
    return facts


def _lines(found: dict[str, Any]) -> Iterator[str]:
    versions, machine, qnn = found["versions"], found["machine"], found["qnn"]
    yield f"versions: {', '.join(f'{name} {number}' for name, number in versions.items())}"
    yield f"machine: {printable(machine['cpu'])}, {machine['system']}"
    yield f"cores that may be used: {machine['cores']}"
    if machine["memory_bytes"]:
        yield f"memory: {machine['memory_bytes'] / 1e9:.1f} GB"
    yield f"instructions: {' '.join(machine['instructions']) or 'unknown'}"
    yield f"kernels: {machine['kernels_problem'] or machine['kernels']}"
    yield "QNN: " + (qnn["problem"] or f"{qnn['version']}, {_place(qnn['is_emulator'])}")
    records = found["records"]
    kept = records["directory"] or "nowhere, for want of a home directory"
    unwritable = "" if records["is_writable"] or not records["directory"] else " (not writable)"
    yield f"results of self-tests are kept in: {printable(kept)}{unwritable}"
    yield ""
    widths = max(map(len, EXTRAS)), max(len(purpose) for _, purpose in EXTRAS.values())
    for name, extra in found["extras"].items():
        missing = extra["missing"]
        state = f"missing {', '.join(missing)}: {how_to_install(name)}" if missing else "installed"
        yield f"{name:<{widths[0]}}  {extra['for']:<{widths[1]}}  {state}"
    if "bundle" in found:
        yield ""
        yield from _bundle_lines(found["bundle"])


def _bundle_lines(bundle: dict[str, Any]) -> Iterator[str]:
    path = printable(bundle["path"])
    if not bundle["is_converted"]:
        yield f"{path}: not converted yet: that is done when it is first opened"
        return
    yield f"{path}: {bundle['weights']}, for {bundle['provider']}"
    if bundle["layers"]:
        yield f"layers: {bundle['layers']}"
    if bundle["experts"]:
        yield f"experts: {bundle['experts']}"
    if bundle["problem"]:
        yield f"cannot be opened here: {bundle['problem']}"
        return
    if not bundle["is_tested"]:
        yield f"not yet tested on this machine: run coordgen check {path}"
        return
    left_out = sorted(set(bundle["widths"]) - set(bundle["exact_widths"]))
    yield f"exact widths: {', '.join(map(str, bundle['exact_widths']))}" + (
        f"; left out: {', '.join(map(str, left_out))}" if left_out else ""
    )
    yield f"exact after wide chunks of a prompt: {'yes' if bundle['exact_after_prefill'] else 'no'}"
    yield f"exact in runs of other widths: {'yes' if bundle['exact_at_any_rows'] else 'no'}"
    steps = ", ".join(f"{width}: {ms:.2f}" for width, ms in bundle["step_ms"].items())
    yield f"ms a step by width: {steps}"


def _place(is_emulator: bool) -> str:
    return "Qualcomm's emulator: exact, but slow" if is_emulator else "on this machine's NPU"


def _qnn_facts() -> dict[str, Any]:
    device = provider_class("qnn")
    try:
        installed = device.installed()
    except ProviderError as error:
        return {"version": None, "is_emulator": None, "problem": str(error)}
    return {"version": installed, "is_emulator": device.is_emulator(), "problem": None}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"


def _is_writable(directory: Path) -> bool:
    """Whether files can be made in a directory, which need not exist yet."""
    try:
        outputs.check_directory("records", directory)
    except OptionError:
        return False
    return True
