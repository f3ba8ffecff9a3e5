"""Which provider of ONNX Runtime runs a bundle, and how: CPU, or Qualcomm's QNN.

In: what a user asks for. Out: the device. A bundle is made for one provider (`Manifest.provider`),
so asking for another is an error, raised before anything is loaded. The QNN part is only imported
when it is used.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnxruntime

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError, arguments
from coordgen_rs.foreign.genai.folder import GenaiFolder
from coordgen_rs.foreign.genie.folder import GenieFolder
from coordgen_rs.target.device import CpuDevice, Device

if TYPE_CHECKING:
    from coordgen_rs.target.qnn.options import QnnOptions

PROVIDERS = ("cpu", "qnn")


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

    def device(self, bundle: Bundle, *, share_graphs: bool = True) -> Device:
        """The device that runs a bundle; none of its graphs is loaded yet.

        Args:
            bundle: An opened bundle.
            share_graphs: Same as in `CpuDevice`; for QNN graphs were compiled together or apart.

        Raises:
            BundleError: The bundle is for another provider or chip.
            ProviderError: QNN is not installed or cannot run here, or the context binaries do not
                fit.
        """
        made_for = bundle.manifest.provider
        of_others = isinstance(bundle, GenaiFolder | GenieFolder)
        if self.provider not in (None, made_for) and of_others:
            raise BundleError(f"{bundle.path} was made for {made_for}, not for {self.provider}")
        if self.provider not in (None, made_for):
            raise BundleError(
                f"{bundle.path} was made for {made_for}, not for {self.provider}: export it again "
                f"with --provider {self.provider}"
            )
        if made_for == "cpu":
            self._check_nothing_for_qnn(bundle)
            if isinstance(bundle, GenaiFolder):
                from coordgen_rs.foreign.genai.device import GenaiDevice

                return GenaiDevice(bundle, share_graphs=share_graphs)
            return CpuDevice(bundle, share_graphs=share_graphs)
        if isinstance(bundle, GenieFolder):
            return self._genie_device(bundle)
        from coordgen_rs.target.qnn.device import QnnDevice

        return QnnDevice(bundle, soc=self.soc, options=self.options, recompile=self.recompile)

    def _genie_device(self, bundle: GenieFolder) -> Device:
        """The device of a bundle that comes compiled.

        Raises:
            BundleError: It is to be compiled again, or is for another chip.
            ProviderError: QNN is not installed, cannot run here, or is too old.
        """
        from coordgen_rs.foreign.genie.device import GenieDevice

        if self.recompile:
            raise BundleError(f"{bundle.path} holds no graphs that could be compiled again")
        return GenieDevice(bundle, soc=self.soc, options=self.options)

    def _check_nothing_for_qnn(self, bundle: Bundle) -> None:
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
                raise BundleError(f"{bundle.path} was made for cpu, but {what} is only for qnn")

    def conditions(self, bundle: Bundle) -> list[str]:
        """All that may change what a session computes, or how fast, except the bundle's files.

        Raises:
            ProviderError: QNN is not installed, or cannot run here.
        """
        found = [bundle.manifest.provider, onnxruntime.__version__]
        if bundle.manifest.provider == "qnn":
            from coordgen_rs.target.qnn.onnx_runtime import version
            from coordgen_rs.target.qnn.options import QnnOptions

            options = self.options or QnnOptions()
            found += [*([] if options.on_cpu else [str(version())]), str(options)]
        return found
