"""The experts of a bundle, as its graphs read them: mapped, never copied.

In: a bundle, and what memory they may take. Out: for each layer with experts, the bytes of all of
them, as an input of the layer's graph. What stays in memory of a mapped file is the system's choice
where there is no budget; else `_core.ExpertStore` reads, keeps and drops them.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.layers import ExpertRegion, experts_input
from coordgen_rs.errors import BlockLoadError, BundleDamagedError, OptionError, SessionClosedError
from coordgen_rs.runtime.onnx_runtime import ort_value
from coordgen_rs.runtime.session import ExpertReport

if TYPE_CHECKING:
    from coordgen_rs._core import BlockCost, ExpertStore

_ON_WINDOWS = sys.platform == "win32"


class ExpertFiles:
    """The files with a bundle's experts; they are mapped when a layer is first asked for.

    Args:
        bundle: An opened bundle, with experts or without.
        regions: Which experts; None for those of the model's layers.

    Attributes:
        budget: Most bytes of them in memory; None for no limit.
        keep_cached: Whether the system may keep copies of what the budget has dropped, until it
            wants the memory. Without, what comes back is read from the disk; for measurements.
    """

    def __init__(self, bundle: Bundle, regions: Sequence[ExpertRegion] | None = None) -> None:
        self._bundle = bundle
        experts = bundle.manifest.experts
        self._num = 0 if experts is None else experts.num
        of_layers = [] if experts is None else experts.layers
        self._regions = of_layers if regions is None else regions
        self.budget: int | None = None
        self._store: ExpertStore | None = None
        self._is_closed = False
        self.keep_cached = True

    def keep_within(self, memory_budget: int, costs: "Sequence[BlockCost]") -> int:
        """Keep experts in what a memory budget leaves beside the blocks' graphs.

        To be called before the first layer is asked for.

        Args:
            memory_budget: Bytes for both.
            costs: What the blocks cost, as plans and streams of their graphs reckon with it.

        Returns:
            Bytes of the budget for graphs: all of them, or within what they are to be streamed.

        Raises:
            BundleDamagedError: A file cannot be mapped, or is shorter than its manifest says.
            SessionClosedError: They are closed.
            MemoryBudgetError: It is too small; the message says how much is needed.
            OptionError: It is negative; or the bundle has experts, on Windows.
        """
        if not self._regions:
            return memory_budget
        if _ON_WINDOWS:
            raise OptionError("memory_budget: experts cannot be kept within one on Windows")
        from coordgen_rs._core import memory_shares

        layers = [(self._num, region.num_bytes // self._num) for region in self._regions]
        graph_bytes = [max(cost.prefill_bytes, cost.decode_bytes) for cost in costs]
        graphs, self.budget = memory_shares(memory_budget, graph_bytes, layers)
        self._store = self._opened()
        return graphs

    def inputs(self, layer: int) -> dict[str, onnxruntime.OrtValue]:
        """What the graph of a layer reads of them, by the input's name; nothing without experts.

        Each is `(bytes,) u8`, the file's own memory.

        Raises:
            BundleDamagedError: A file cannot be mapped, or is shorter than its manifest says.
            SessionClosedError: They are closed.
        """
        for number, region in enumerate(self._regions):
            if region.layer == layer:
                if _ON_WINDOWS:
                    return {experts_input(layer): ort_value(self._mapped(region))}
                self._store = self._store or self._opened()
                return {experts_input(layer): ort_value(self._store.array(number))}
        return {}

    def close(self) -> None:
        """Give back the memory that they take, and end the threads that read them.

        To be called when no graph is bound to them any more.
        """
        self._store, self._is_closed = None, True

    def _mapped(self, region: ExpertRegion) -> NDArray[np.uint8]:
        self._check_open()
        self._check_size(region)
        path, place = self._bundle.file(region.file), (region.offset, region.num_bytes)
        content: NDArray[np.uint8] = np.memmap(path, np.uint8, "r", *place)
        return np.asarray(content)

    @property
    def num_read(self) -> tuple[int, int] | None:
        """Experts that were read so far for first rows and for all; None where nobody counts.

        Each counts once in a layer's run; within a budget only those that were not in memory.
        """
        return None if self._store is None else self._store.num_read

    def report(self) -> ExpertReport | None:
        """What was asked of them so far; None without a budget, and when they are closed."""
        if self._store is None or self.budget is None:
            return None
        return ExpertReport.of(self._store)

    def name_failure(self, error: Exception) -> None:
        """Where a run failed as a file of experts cannot be read, say so.

        Raises:
            BundleDamagedError: It cannot; the message names the file.
        """
        failure = None if self._store is None else self._store.take_failure()
        if failure is not None:
            raise BundleDamagedError(failure) from error

    def _opened(self) -> "ExpertStore":
        """A store over them.

        Raises:
            BundleDamagedError: A file cannot be mapped, or is shorter than its manifest says.
            SessionClosedError: They are closed.
        """
        from coordgen_rs._core import ExpertStore

        self._check_open()
        for region in self._regions:
            self._check_size(region)
        files = list(dict.fromkeys(region.file for region in self._regions))
        num = self._num
        try:
            return ExpertStore(
                [self._bundle.file(name) for name in files],
                [
                    (files.index(it.file), it.offset, num, it.num_bytes // num)
                    for it in self._regions
                ],
                budget=self.budget,
                keep_cached=self.keep_cached,
            )
        except BlockLoadError as error:
            raise BundleDamagedError(str(error)) from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosedError("the session is closed")

    def _check_size(self, region: ExpertRegion) -> None:
        path = self._bundle.file(region.file)
        try:
            held = path.stat().st_size
        except OSError as error:
            raise BundleDamagedError(f"{path} cannot be mapped: {error}") from error
        if held < region.offset + region.num_bytes:
            raise BundleDamagedError(
                f"{path} is damaged: it ends inside the experts of layer {region.layer}"
            )
