"""Which provider of ONNX Runtime runs a bundle, and how: CPU, or Qualcomm's QNN.

In: what a user asks for. Out: the device. A bundle is made for one provider (`Manifest.provider`),
so asking for another is an error, raised before anything is loaded. Which class the device is
stands with the kinds of directories (`directory.py`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import onnxruntime

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError, arguments
from coordgen_rs.loading.directory import KINDS, PROVIDERS, device_class, provider_class
from coordgen_rs.runtime.caches.kv_cache import KV_FORMS
from coordgen_rs.runtime.device import Device

if TYPE_CHECKING:
    from coordgen_rs.runtime.qnn.options import QnnOptions


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
