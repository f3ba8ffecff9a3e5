"""`coordgen compile`: context binaries, the graphs of a bundle compiled once, to load quickly.

In: a bundle for QNN. Out: the same bundle with an EPContext file and a binary for each graph of the
blocks and the head; with `shared` also one binary per block with all its graphs, which share
weights. All of them appear, or none. One process at a time compiles a bundle. Compiling needs no
device: on x86-64 the provider compiles for any chip.
"""

import argparse
import hashlib
import os
import re
import secrets
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import onnxruntime

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.manifest import MANIFEST_NAME, FileRecord
from coordgen_rs.bundle.qnn import SOCS, CompiledGraphs, QnnTarget, Soc
from coordgen_rs.cli import option
from coordgen_rs.cli.option import QNN_OPTION
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import BundleError, ExportError, LeftoverWarning, OptionError
from coordgen_rs.loading.directory import KINDS, open_bundle
from coordgen_rs.runtime.qnn.options import QnnOptions, parse_options, soc_named
from coordgen_rs.runtime.qnn.provider import QnnVersion, qnn_session, version
from coordgen_rs.store.files import locked, unfinished_directory, write_file

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class CompileReport:
    """What was compiled.

    Attributes:
        bundle: The bundle, opened again.
        num_graphs: Graphs that have a binary now.
        compile_s: Seconds that compiling the graphs took, one at a time.
        load_s: Seconds that loading their binaries took, to try them out.
        binary_bytes: Bytes of all binaries of one graph each.
        apart_bytes: The part of these bytes for graphs that can share a binary with another.
        shared_bytes: Bytes of the weight-shared binaries of the same graphs; None if not asked for.
    """

    bundle: Bundle
    num_graphs: int
    compile_s: float
    load_s: float
    binary_bytes: int
    apart_bytes: int
    shared_bytes: int | None


def compile_bundle(
    path: str | Path,
    *,
    soc: str | None = None,
    shared: bool = False,
    options: QnnOptions | None = None,
    on_progress: Progress | None = None,
) -> CompileReport:
    """Compile all graphs of a bundle, and load each once; existing binaries are replaced.

    Args:
        path: The bundle's directory.
        soc: The chip to compile for, which becomes the bundle's; None keeps the bundle's own.
        shared: Whether to also write weight-shared binaries.
        options: How to compile.
        on_progress: Called with what comes next, steps done, and steps in total.

    Raises:
        BundleError: The bundle is not for QNN, or another tool's.
        OptionError: The chip is unknown, or graphs are to be computed on the CPU.
        ProviderError: The provider is missing, or cannot compile or load a graph; the bundle is
            unchanged.
        ExportError: The binaries cannot be written, or another process compiles this bundle; the
            bundle is unchanged.
    """
    _qnn_target(open_bundle(path))
    if options is not None and options.on_cpu:
        raise OptionError("on_cpu: nothing is compiled for the CPU")
    with _staging(Path(path).absolute()) as staging:
        bundle = Bundle.open(path)  # which another process may just have compiled
        target = _qnn_target(bundle)
        own = Soc(target.soc, target.soc_model, target.htp_arch, "")
        chip = own if soc is None else soc_named(soc)
        _remove_orphans(bundle)
        manifest = bundle.manifest
        # The head is run at the widths of decode steps only.
        groups = [list(block.graphs.values()) for block in manifest.blocks]
        groups.append([manifest.head.graphs[rows] for rows in manifest.decode_widths])
        pairs = [group for group in groups if len(group) > 1]
        num_graphs = sum(map(len, groups))
        num_steps = 2 * num_graphs + (sum(map(len, pairs)) if shared else 0)
        compiler = _Compiler(bundle, chip, options or QnnOptions(), staging, on_progress, num_steps)
        start = time.perf_counter()
        compiled = compiler.compile(groups, is_shared=False)
        compile_s = time.perf_counter() - start
        load_s = compiler.try_out(compiled)
        binary_bytes = _binary_bytes(staging, compiled.graphs)
        apart_bytes = _binary_bytes(staging, (file for group in pairs for file in group))
        together = compiler.compile(pairs, is_shared=True) if shared else None
        shared_bytes = None if together is None else _binary_bytes(staging) - binary_bytes
        target = replace(target, soc=chip.name, soc_model=chip.model, htp_arch=chip.htp_arch)
        target = replace(target, compiled=compiled, shared=together)
        _publish(bundle, target, staging)
    bundle = Bundle.open(path)
    return CompileReport(
        bundle, num_graphs, compile_s, load_s, binary_bytes, apart_bytes, shared_bytes
    )


def _qnn_target(bundle: Bundle) -> QnnTarget:
    """What a bundle says about its chip.

    Raises:
        BundleError: The bundle is for CPU, or another tool's.
    """
    if KINDS[bundle.form].is_foreign:
        raise BundleError(f"{bundle.shown} is another tool's: it holds no graphs to compile")
    if bundle.manifest.qnn is None:
        raise BundleError(f"{bundle.shown} is for CPU: export it with --provider qnn")
    return bundle.manifest.qnn


@dataclass
class _Compiler:
    """Compiles groups of graphs, those that share weights, into a directory."""

    bundle: Bundle
    soc: Soc
    options: QnnOptions
    staging: Path
    on_progress: Progress | None
    num_steps: int

    def __post_init__(self) -> None:
        self._token, self._done = secrets.token_hex(4), 0
        self._version: QnnVersion = version()

    def compile(self, groups: Sequence[Sequence[str]], *, is_shared: bool) -> CompiledGraphs:
        """Compile every graph on its own, or the graphs of each group into one binary."""
        graphs: dict[str, str] = {}
        for group in groups:
            # Weights are shared among sessions that are alive together.
            alive: list[onnxruntime.InferenceSession] = []
            for file in group:
                self._progress(f"compiling {file}")
                kind = "shared" if is_shared else "context"
                # No earlier compilation used such a name, so both can exist side by side.
                graphs[file] = f"{Path(file).stem}.{kind}-{self._token}.onnx"
                entries = self._entries(graphs[file], is_shared, file == group[-1])
                model = self.bundle.file(file)
                session = qnn_session(model, self.soc, self.options, entries)
                if is_shared:
                    alive.append(session)
        made = self._version
        return CompiledGraphs(made.provider, made.qnn, self.soc.model, self.soc.htp_arch, graphs)

    def try_out(self, compiled: CompiledGraphs) -> float:
        """Load every binary once; the seconds that took."""
        seconds = 0.0
        for name in compiled.graphs.values():
            self._progress(f"loading {name}")
            start = time.perf_counter()
            qnn_session(self.staging / name, self.soc, self.options)
            seconds += time.perf_counter() - start
        return seconds

    def _progress(self, what: str) -> None:
        if self.on_progress is not None:
            self.on_progress(what, self._done, self.num_steps)
        self._done += 1

    def _entries(self, name: str, is_shared: bool, is_last: bool) -> dict[str, str]:
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": str(self.staging / name),
        }
        if is_shared:
            entries["ep.share_ep_contexts"] = "1"
        if is_shared and is_last:
            entries["ep.stop_share_ep_contexts"] = "1"
        return entries


@contextmanager
def _staging(bundle: Path) -> Iterator[Path]:
    """A hidden directory in the bundle, gone at the end, while no other process compiles it.

    Raises:
        ExportError: The binaries cannot be written, or another process compiles the bundle.
    """
    try:
        with locked(bundle / MANIFEST_NAME) as is_mine:
            if not is_mine:
                raise ExportError(f"{bundle} is being compiled by another process: wait for it")
            with unfinished_directory(bundle / "compiled") as staging:
                yield staging
    except OSError as error:
        reason = error.strerror or error
        raise ExportError(f"{bundle} cannot be compiled: {reason}") from error
    except MemoryError as error:
        raise ExportError(
            f"{bundle} was not compiled: out of memory; free some, or raise the limit (ulimit -v)"
        ) from error


def _remove_orphans(bundle: Bundle) -> None:
    """Remove binaries which a killed run moved into the bundle, or did not remove from it."""
    stems = (re.escape(Path(name).stem) for name in bundle.manifest.files if name.endswith(".onnx"))
    made = re.compile(rf"({'|'.join(stems)})\.(context|shared)-[0-9a-f]{{8}}.*\.(onnx|bin)")
    for path in sorted(bundle.path.iterdir()):
        if path.name not in bundle.manifest.files and made.fullmatch(path.name):
            path.unlink()
            message = f"{path}, which an interrupted run had left, was removed"
            warnings.warn(LeftoverWarning(message), stacklevel=2)


def _binary_bytes(staging: Path, graphs: Iterable[str] | None = None) -> int:
    """Size of the existing binaries of some graphs, or of all."""
    stems = "" if graphs is None else tuple(f"{Path(file).stem}." for file in graphs)
    return sum(p.stat().st_size for p in staging.glob("*.bin") if p.name.startswith(stems))


def _publish(bundle: Bundle, target: QnnTarget, staging: Path) -> None:
    """Move the new files into the bundle, then the manifest that names them, then drop the old."""
    old = _compiled_files(bundle)
    made = {}
    for path in sorted(staging.iterdir()):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            digest = hashlib.file_digest(stream, "sha256")
            made[path.name] = FileRecord(os.fstat(stream.fileno()).st_size, digest.hexdigest())
    kept = {name: record for name, record in bundle.manifest.files.items() if name not in old}
    text = replace(bundle.manifest, qnn=target, files=kept | made).to_json().encode()
    try:
        for name in made:
            (staging / name).rename(bundle.file(name))
        write_file(bundle.file(MANIFEST_NAME), text)
    except BaseException:
        if bundle.file(MANIFEST_NAME).read_bytes() != text:
            for name in made:
                bundle.file(name).unlink(missing_ok=True)
        raise
    for name in old:
        bundle.file(name).unlink(missing_ok=True)


def _compiled_files(bundle: Bundle) -> set[str]:
    """The EPContext files and binaries that the bundle has."""
    target = bundle.manifest.qnn
    stems = tuple(Path(name).stem for name in ([] if target is None else target.compiled_files))
    return {name for name in bundle.manifest.files if stems and name.startswith(stems)}


EXAMPLES = """\
examples:
  coordgen compile bundle
  coordgen compile bundle --shared --soc 8-elite
  coordgen compile bundle --qnn-option vtcm_mb=8 --qnn-option finalization_mode=3
"""


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(
        option.EXPORTED_BUNDLE,
        option.word("--soc NAME").help(
            f"compile for this chip instead of the bundle's: {', '.join(SOCS)}"
        ),
        option.flag("--shared").help(
            "also write one binary per block that holds all its graphs, with shared weights"
        ),
        QNN_OPTION,
    )


def run(options: argparse.Namespace) -> int:
    """Compile the bundle, and print what was written."""
    with progress() as on_progress:
        report = compile_bundle(
            options.bundle,
            soc=options.soc,
            shared=options.shared,
            options=parse_options(options.qnn_option),
            on_progress=on_progress,
        )
    ratio = report.compile_s / report.load_s
    print(
        f"{report.num_graphs} graphs, {report.binary_bytes / 1e6:.2f} MB: compiled in "
        f"{report.compile_s:.2f} s, loaded in {report.load_s:.2f} s ({ratio:.0f} times as fast)",
        file=sys.stderr,
    )
    if report.shared_bytes is not None:
        share = report.shared_bytes / report.apart_bytes
        print(
            f"weight-shared binaries of the blocks: {report.shared_bytes / 1e6:.2f} MB, "
            f"{share:.2f} times the {report.apart_bytes / 1e6:.2f} MB of separate ones",
            file=sys.stderr,
        )
    return 0
