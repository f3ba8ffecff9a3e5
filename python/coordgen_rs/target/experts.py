"""The experts of a bundle, as its graphs read them: mapped, never copied.

In: a bundle. Out: for each layer with experts, the bytes of all of them, as an input of the layer's
graph. What stays in memory of a mapped file is the system's choice.
"""

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.bundle.experts import ExpertRegion, input_name
from coordgen_rs.errors import BundleDamagedError
from coordgen_rs.target.buffers import ort_value


class ExpertFiles:
    """The files with a bundle's experts; each is mapped when a layer of it is first asked for.

    Args:
        bundle: An opened bundle, with experts or without.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        experts = bundle.manifest.experts
        regions = [] if experts is None else experts.layers
        self._regions = {region.layer: region for region in regions}
        self._mapped: dict[str, NDArray[np.uint8]] = {}

    def inputs(self, layer: int) -> dict[str, onnxruntime.OrtValue]:
        """What the graph of a layer reads of them, by the input's name; nothing without experts.

        Raises:
            BundleDamagedError: As of `value`.
        """
        region = self._regions.get(layer)
        return {} if region is None else {input_name(layer): self.value(region)}

    def value(self, region: ExpertRegion) -> onnxruntime.OrtValue:
        """The experts of a layer, `(bytes,) u8`: the file's own memory.

        Raises:
            BundleDamagedError: The file cannot be mapped, or is shorter than its manifest says.
        """
        content = self._content(region.file)[region.offset : region.offset + region.num_bytes]
        if len(content) < region.num_bytes:
            raise BundleDamagedError(
                f"{self._bundle.file(region.file)} is damaged: it ends inside the experts of layer "
                f"{region.layer}"
            )
        return ort_value(content)

    def _content(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a file.

        Raises:
            BundleDamagedError: It cannot be mapped.
        """
        if name not in self._mapped:
            path = self._bundle.file(name)
            try:
                self._mapped[name] = np.asarray(np.memmap(path, np.uint8, "r"))
            except (OSError, ValueError) as error:
                raise BundleDamagedError(f"{path} cannot be mapped: {error}") from error
        return self._mapped[name]
