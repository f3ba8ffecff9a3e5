"""The kinds of directories that can be run, bundles of ours and other tools' as they are; by what.

In: a user's path, and what a user asks for. Out: a `Bundle` of the kind that lies there, and the
device that runs it. A bundle is made for one provider of ONNX Runtime (`Manifest.provider`), so
asking for another is an error, raised before anything is loaded. A checkpoint is converted first.
What is known of other tools' directories (`formats/`), of conversions, and of providers
(`runtime/`), is only imported when it is used.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import onnxruntime

from coordgen_rs.bundle.directory import GENAI_CONFIG_NAME, GENIE_CONFIG_NAME, Bundle, Progress
from coordgen_rs.bundle.manifest import MANIFEST_NAME
from coordgen_rs.errors import BundleError, arguments
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.device import Device

if TYPE_CHECKING:
    from coordgen_rs.runtime.qnn.options import QnnOptions


@dataclass(frozen=True)
class DirectoryKind:
    """One kind of directory.

    Attributes:
        is_at: Whether a path is such a directory, or its config.
        name: Where the class of what is opened stands, a `Bundle`.
        device_name: Where that of what runs it stands, a `Device`; None for that of the provider.
    """

    is_at: Callable[[Path], bool]
    name: str
    device_name: str | None = None

    @property
    def is_foreign(self) -> bool:
        """Whether another tool made it, so that `coordgen` cannot make it anew."""
        return self.device_name is not None


def open_bundle(
    path: str | Path,
    *,
    context: int | None = None,
    on_progress: Progress | None = None,
) -> Bundle:
    """Open a bundle, a checkpoint, or a folder of ONNX Runtime GenAI or Genie as it is.

    Args:
        path: The directory, or the genai_config.json or genie_config.json in it. Or a GGUF file, a
            Hugging Face directory or `hf:OWNER/NAME`, which is converted when it is first opened.
        context: How many tokens a conversion is to have room for; None for 4,096, or as many as the
            model can read.
        on_progress: Called with what is being done, how much is done, and how much there is; only
            when a checkpoint is converted.

    Raises:
        CheckpointError, ExportError: A checkpoint cannot be converted.
        BundleError: There is no such directory, or it cannot be used; the message names the file
            or what is not supported.
        BundleDamagedError: A file is missing or of another size; the message names it.
        OptionError: `path` is no path, or a package for the conversion is missing.
    """
    path = arguments.path("path", path)
    kind = _kind_at(path)
    if _is_converted(path, kind):
        from coordgen_rs.loading.conversion import open_converted

        return open_converted(path, context=context, on_progress=on_progress)
    directory = path.parent if path.name in (GENAI_CONFIG_NAME, GENIE_CONFIG_NAME) else path
    opened: Bundle = _imported(kind.name).open(directory)
    return opened


def provider_class(provider: str) -> type[Device]:
    """The class of the device of a provider, one of `PROVIDERS`, for bundles of ours."""
    return cast(type[Device], _imported(_DEVICES[provider]))


def device_class(bundle: Bundle) -> type[Device]:
    """The class of the device that runs a bundle."""
    name = KINDS[bundle.form].device_name or _DEVICES[bundle.manifest.provider]
    return cast(type[Device], _imported(name))


def unconverted(path: Path, *, context: int | None = None) -> Any | None:
    """The head of a checkpoint on this machine that `open_bundle` would convert first, opened.

    None for what it opens as it is, such as a conversion that was made before.

    Raises:
        CheckpointError: The checkpoint is damaged, or cannot be converted.
        ExportError, OptionError: Same as in `open_bundle`.
    """
    if not path.exists() or not _is_converted(path, _kind_at(path)):
        return None
    from coordgen_rs.loading import conversion

    return conversion.unconverted(path, context=context)


def check_path(path: Path) -> None:
    """Refuse a path at which there is nothing that `open_bundle` could open or convert.

    Raises:
        BundleError, BundleDamagedError: There is none; the message says what is there.
    """
    kind = _kind_at(path)
    if not kind.is_foreign and not _is_converted(path, kind):
        Bundle.open(path)


def check_template(path: Path, *, context: int | None = None) -> None:
    """Refuse a checkpoint without a chat template before it is converted.

    Raises:
        ChatTemplateError: It has none, or a malformed one. Other errors are those of `unconverted`.
    """
    head = unconverted(path, context=context)
    if head is not None:
        head.read_chat().template().check()


def _kind_at(path: Path) -> DirectoryKind:
    return next(kind for kind in KINDS.values() if kind.is_at(path))


def _is_converted(path: Path, kind: DirectoryKind) -> bool:
    """Whether what lies at a path is a checkpoint, which is converted before it is run."""
    if kind.is_foreign or (path / MANIFEST_NAME).exists():
        return False
    from coordgen_rs.loading.conversion import is_checkpoint

    return is_checkpoint(path)


def _has(config_name: str, path: Path) -> bool:
    """Whether a path is a folder with the config of another tool, or that file."""
    if path.name == config_name:
        return True
    return not (path / MANIFEST_NAME).exists() and (path / config_name).exists()


def _is_pipeline(path: Path) -> bool:
    if not _has(GENAI_CONFIG_NAME, path):
        return False
    return bool(_imported("formats.genie.pipeline.is_pipeline")(path))


def _imported(name: str) -> Any:
    """What has a dotted name in the package, whose module is imported now."""
    module, _, own_name = name.rpartition(".")
    return getattr(import_module(f"coordgen_rs.{module}"), own_name)


KINDS = {
    "genie": DirectoryKind(
        partial(_has, GENIE_CONFIG_NAME),
        "formats.genie.folder.GenieFolder",
        "formats.genie.device.GenieDevice",
    ),
    "genai pipeline": DirectoryKind(
        _is_pipeline,
        "formats.genie.pipeline.PipelineFolder",
        "formats.genie.device.GenieDevice",
    ),
    "genai": DirectoryKind(
        partial(_has, GENAI_CONFIG_NAME),
        "formats.genai.folder.GenaiFolder",
        "formats.genai.device.GenaiDevice",
    ),
    "coordgen": DirectoryKind(lambda _: True, "bundle.directory.Bundle"),
}
"""By `Bundle.form`, in the order in which they are tried; ours is the last, and says what lacks."""

_DEVICES = {"cpu": "runtime.cpu.CpuDevice", "qnn": "runtime.qnn.device.QnnDevice"}
"""By `Device.provider`: what runs bundles of ours."""

PROVIDERS = tuple(_DEVICES)


@dataclass(frozen=True)
class ProviderChoice:
    """What a user asks for; the bundle decides the rest.

    Attributes:
        provider: One of `PROVIDERS`, or None.
        soc: Name of the chip, for QNN.
        options: How to compile and run, for QNN.
        recompile: Whether to compile graphs again if their context binaries do not fit, for QNN.

    Raises:
        OptionError: There is no such provider.
    """

    provider: str | None = None
    soc: str | None = None
    options: "QnnOptions | None" = None
    recompile: bool = False

    def __post_init__(self) -> None:
        if self.provider is not None:
            arguments.one_of("provider", self.provider, PROVIDERS)

    def device(
        self, bundle: Bundle, *, share_graphs: bool = True, kv_cache: str = KV_FORMS[0]
    ) -> Device:
        """The device that runs a bundle; none of its graphs is loaded yet.

        Args:
            bundle: An opened bundle.
            share_graphs: Same as in `CpuDevice`; for QNN graphs were compiled together or apart.
            kv_cache: Same as in `CpuDevice`; for QNN graphs were compiled for one form, and another
                than the default is refused.

        Raises:
            BundleError: The bundle is for another provider or chip.
            OptionError: Keys and values cannot be held so.
            ProviderError: QNN is not installed or cannot run here, or the context binaries do not
                fit.
        """
        made_for, kind = bundle.manifest.provider, KINDS[bundle.form]
        if self.provider not in (None, made_for):
            advice = f": export it again with --provider {self.provider}"
            raise BundleError(
                f"{bundle.shown} was made for {made_for}, not for {self.provider}"
                + ("" if kind.is_foreign else advice)
            )
        device: Any = device_class(bundle)
        if device.is_host:
            self._check_nothing_for_npus(bundle)
            return cast(Device, device(bundle, share_graphs=share_graphs, kv_cache=kv_cache))
        if kv_cache != KV_FORMS[0]:
            raise BundleError(
                f"{bundle.shown} was made for {made_for}, but keys and values in {kv_cache} are "
                "only for cpu"
            )
        npu = device(bundle, soc=self.soc, options=self.options, recompile=self.recompile)
        return cast(Device, npu)

    def _check_nothing_for_npus(self, bundle: Bundle) -> None:
        """Refuse what would be ignored.

        Raises:
            BundleError: Something was asked for that only QNN has.
        """
        has_options = self.options is not None and self.options != type(self.options)()
        for what, is_given in (
            (f"the chip {self.soc}", self.soc is not None),
            ("options of QNN", has_options),
            ("compiling again", self.recompile),
        ):
            if is_given:
                raise BundleError(f"{bundle.shown} was made for cpu, but {what} is only for qnn")

    def conditions(self, bundle: Bundle) -> list[str]:
        """All that may change what a session computes, or how fast, except the bundle's files.

        Raises:
            ProviderError: QNN is not installed, or cannot run here.
        """
        own = provider_class(bundle.manifest.provider).conditions(self.options)
        return [bundle.manifest.provider, onnxruntime.__version__, *own]
