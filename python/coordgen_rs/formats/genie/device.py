"""A bundle of Genie on Qualcomm's HTP: the device of such sessions.

In: an opened bundle. Out: a device whose blocks are the parts of the model, and whose last part
gives logits. Before anything is loaded, what the bundle was made by and for is compared with what
is here.
"""

from collections.abc import Sequence
from typing import Any, cast

from numpy.typing import NDArray

from coordgen_rs.bundle.manifest import QnnTarget
from coordgen_rs.errors import BundleError, ProviderError
from coordgen_rs.formats.genie.binary.metadata import version_numbers
from coordgen_rs.formats.genie.blocks import GenieBlocks, GenieHead
from coordgen_rs.formats.genie.buffers import Forms, GenieBuffers
from coordgen_rs.formats.genie.folder import GenieFolder
from coordgen_rs.runtime.buffers import Buffers
from coordgen_rs.runtime.qnn.buffers import MaskIntegers
from coordgen_rs.runtime.qnn.device import warn_if_inexact
from coordgen_rs.runtime.qnn.kv_cache import KEYS_BY_DIM, IntegerCache
from coordgen_rs.runtime.qnn.onnx_runtime import check_available, version
from coordgen_rs.runtime.qnn.options import SOCS, QnnOptions, Soc


class GenieDevice:
    """A bundle of Genie on the QNN provider.

    Args:
        folder: An opened bundle.
        soc: Name of the chip; None takes the bundle's own.
        options: How to run.

    Attributes:
        allowed_commits: Ways to commit that are allowed: compact only if it is exact.

    Raises:
        BundleError: The bundle is for another chip, or is to be computed on the CPU.
        ProviderError: The provider is missing, cannot run here, or is older than the binaries.
    """

    provider = "qnn"
    is_host = False
    reads_tokens = True

    def __init__(
        self, folder: GenieFolder, *, soc: str | None = None, options: QnnOptions | None = None
    ) -> None:
        manifest, model = folder.manifest, folder.model
        target = _target(folder, soc)
        if options is not None and options.on_cpu:
            raise BundleError(f"{folder.path} holds compiled graphs, which no CPU can run: on_cpu")
        check_available()
        _check_version(folder)
        self.bundle = folder
        self.allowed_commits = ("canonical", "compact") if target.is_exact else ("canonical",)
        slots = {
            rows: next(part[rows].slots for part in model.parts if part[rows].slots)
            for rows in model.widths
        }
        self.cache = IntegerCache(
            model.caches, model.num_kv_heads, model.head_dim, slots, KEYS_BY_DIM
        )
        chip = Soc(target.soc, target.soc_model, target.htp_arch, "")
        self.blocks = GenieBlocks(folder, chip, self.cache, options or QnnOptions())
        embed = folder.embedded_rows() if model.embedded is not None else None
        self._forms = Forms(model, self.rope_tables(), embed, MaskIntegers.of(target))
        self._most_rows = manifest.widths[-1]

    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Same as in the folder, but in the graphs' encoding.

        Raises:
            BundleError: A pipeline's graph for positions cannot be run.
        """
        model, tables = self.bundle.model, self.bundle.rope_tables()
        return {"cos": model.cos.quantize(tables["cos"]), "sin": model.sin.quantize(tables["sin"])}

    def buffers(self, rows: int) -> GenieBuffers:
        """New buffers for `rows` tokens."""
        return GenieBuffers.of_rows(rows, self._forms)

    def load_head(self, steps: Sequence[Buffers]) -> GenieHead:
        """What reads the logits of the last part."""
        model = self.bundle.model
        return GenieHead(self.blocks, model.logits, self._most_rows, model.vocab_size)


def _target(folder: GenieFolder, soc: str | None) -> QnnTarget:
    """The bundle's chip and encodings; warns of what is not exact.

    Raises:
        BundleError: It is for another chip.
    """
    target = cast(QnnTarget, folder.manifest.qnn)
    if soc is not None and SOCS.get(soc, Soc(soc, -1, 0, "")).model != target.soc_model:
        raise BundleError(f"{folder.path} is for {target.soc}, not for {soc}")
    warn_if_inexact(folder, target)
    return target


def _check_version(folder: GenieFolder) -> None:
    """Check the version of QAIRT: a binary needs the one that made it, or a later one.

    Raises:
        ProviderError: It was made by a later one than is here.
    """
    here = version()
    if folder.made_by is not None and version_numbers(folder.made_by) > version_numbers(here.qnn):
        raise ProviderError(
            f"{folder.path}: its binaries were made by QAIRT {folder.made_by}, here is "
            f"{here.qnn} (onnxruntime-qnn {here.provider}): install a newer onnxruntime-qnn"
        )
