"""Which provider of ONNX Runtime runs a bundle, and how: CPU, or Qualcomm's QNN.

In: what a user asks for. Out: the session. A bundle is made for one provider (`Manifest.provider`),
so asking for another is an error, told before anything is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnxruntime

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.errors import BundleError
from coordgen_rs.target.qnn import onnx_runtime as qnn
from coordgen_rs.target.qnn.options import QnnOptions
from coordgen_rs.target.qnn.session import QnnSession
from coordgen_rs.target.session import OrtSession
from coordgen_rs.target.switching import BlockCosts

PROVIDERS = ("cpu", "qnn")


@dataclass(frozen=True)
class ProviderChoice:
    """What a user asks for; the bundle decides what is left open.

    Attributes:
        provider: One of `PROVIDERS`, or None.
        soc: Name of the chip, for QNN.
        options: How to compile and run, for QNN.
        recompile: Whether graphs whose context binaries do not fit are compiled again, for QNN.
    """

    provider: str | None = None
    soc: str | None = None
    options: QnnOptions = field(default_factory=QnnOptions)
    recompile: bool = False

    def open(
        self,
        bundle: Bundle,
        *,
        threads: int | None = None,
        memory_budget: int | None = None,
        costs: Sequence[BlockCosts] | None = None,
        preload: bool = True,
        share_graphs: bool = True,
    ) -> OrtSession:
        """The session of a bundle; arguments as of `OrtSession`.

        `share_graphs` is for CPU: for QNN graphs were compiled together or apart.

        Raises:
            BundleError: The bundle is for another provider or chip, or cannot be loaded.
            ProviderError: QNN is not installed, cannot run here, or refuses the bundle.
        """
        made_for = bundle.manifest.provider
        if self.provider not in (None, made_for):
            raise BundleError(
                f"{bundle.path} was made for {made_for}, not for {self.provider}: export it again "
                f"with --provider {self.provider}"
            )
        if made_for == "cpu":
            return OrtSession(
                bundle,
                threads=threads,
                share_graphs=share_graphs,
                preload=preload,
                memory_budget=memory_budget,
                costs=costs,
            )
        return QnnSession(
            bundle,
            soc=self.soc,
            options=self.options,
            recompile=self.recompile,
            threads=threads,
            preload=preload,
            memory_budget=memory_budget,
            costs=costs,
        )

    def conditions(self, bundle: Bundle) -> list[str]:
        """All that may change what a session computes, or how fast, but for the bundle's files.

        Raises:
            ProviderError: QNN is not installed, or cannot run here.
        """
        found = [bundle.manifest.provider, onnxruntime.__version__]
        if bundle.manifest.provider == "qnn":
            found += [str(qnn.version()), str(self.options)]
        return found
