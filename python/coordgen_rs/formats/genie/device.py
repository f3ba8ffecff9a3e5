"""A bundle of Genie on Qualcomm's HTP: the device of such sessions.

In: an opened bundle; ids, positions and mask as the core fills them. Out: a device whose blocks are
the parts of the model, and whose last part gives logits, in the graphs' integers. Before anything
is loaded, what the bundle was made by and for is compared with what is here. Graphs that share a
binary share its weights, too: the first session loads the binary, further ones find their graphs in
it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from coordgen_rs.bundle.qnn import SOCS, QnnTarget, Soc
from coordgen_rs.errors import BundleError, ProviderError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.formats.genie.binary import TensorFacts
from coordgen_rs.formats.genie.folder import GenieFolder
from coordgen_rs.formats.genie.graphs import (
    CACHE_INDEX,
    COS,
    EMBEDDED,
    FILLED,
    MASK,
    SIN,
    TOKENS,
    PartGraph,
)
from coordgen_rs.formats.genie.metadata import version_numbers
from coordgen_rs.formats.genie.model import GenieModel
from coordgen_rs.runtime.device import Buffers
from coordgen_rs.runtime.onnx_runtime import ort_value
from coordgen_rs.runtime.qnn.device import (
    KEYS_BY_DIM,
    BoundMask,
    HtpDevice,
    IntegerCache,
    masked_arrays,
    warn_if_inexact,
)
from coordgen_rs.runtime.qnn.options import QnnOptions
from coordgen_rs.runtime.qnn.provider import check_available, is_emulator, qnn_session, version

_OPSET, _IR_VERSION = 21, 10

Embed = Callable[[NDArray[np.int64]], NDArray[Any]]
"""Token ids `(rows,) i64` to what the first graph reads, `(rows, hidden_size)`."""


@dataclass(frozen=True)
class InputEncodings:
    """How the graphs read what the core fills.

    Attributes:
        model: The graphs.
        tables: Cosines and sines by position, in their encoding.
        embed: The embedding, where the first graph reads embedded tokens; else None.
        target: How they read masks.
    """

    model: GenieModel
    tables: Mapping[str, NDArray[Any]]
    embed: Embed | None
    target: QnnTarget


class GenieBuffers(Buffers):
    """What the graphs of one width read and write in a run.

    Args:
        arrays: Those of `Buffers`, in its order; the drafted mask has absolute slots as columns.
        encodings: How the graphs read them.

    Attributes:
        logits: `(rows, vocab_size)`, as the last graph gives them.
    """

    def __init__(self, *arrays: Any, encodings: InputEncodings) -> None:
        super().__init__(*arrays)
        self._encodings = encodings
        model, rows = encodings.model, self.rows
        graphs = [part[rows] for part in model.parts]
        is_native = next(graph for graph in graphs if graph.slots).is_native
        self._read = {
            name: np.zeros(facts.shape, facts.numpy_type)
            for graph in graphs
            for name, facts in graph.facts.inputs.items()
            if name in FILLED
        }
        self._bound_mask = BoundMask(self._read[MASK], encodings.target, is_native=is_native)
        out = graphs[-1].facts.outputs[graphs[-1].out]
        self._logits_shape = out.shape
        self.logits = np.zeros((rows, model.vocab_size), out.numpy_type)
        self.values = {name: ort_value(array) for name, array in self._read.items()}

    def part(self, first: int, rows: int) -> "GenieBuffers":
        """Same as in `Buffers`; its logits are the whole's, too."""
        part = cast(GenieBuffers, super().part(first, rows))
        part.logits = self.logits[first : first + rows]
        return part

    def copy_outputs_from(self, wide: Buffers, block: int) -> None:
        """Take what a wider run of a part has given, and its logits if it is the last."""
        super().copy_outputs_from(wide, block)
        self.logits[:] = cast(GenieBuffers, wide).logits[: self.rows]

    def _of(self, *arrays: Any) -> "GenieBuffers":
        return GenieBuffers(*arrays, encodings=self._encodings)

    @property
    def logits_value(self) -> onnxruntime.OrtValue:
        """The logits as the last graph gives them."""
        return ort_value(self.logits.reshape(self._logits_shape))

    def hidden_value(self, place: int, shape: tuple[int, ...]) -> onnxruntime.OrtValue:
        """Hidden states as a graph has them: `(1, rows, hidden_size)`, or with fewer or more ones.

        Args:
            place: 0 or 1: a part reads one and gives the other.
            shape: The graph's.
        """
        return ort_value(self.hidden[place].reshape(shape))

    def before_run(self) -> None:
        """Turn ids, positions and mask into the graphs' own."""
        encodings, read = self._encodings, self._read
        if TOKENS in read:
            read[TOKENS][0] = self.input_ids
        for name in EMBEDDED:
            if name in read and encodings.embed is not None:
                read[name].reshape(self.rows, -1)[:] = encodings.embed(self.input_ids)
        for name, table in ((COS, encodings.tables["cos"]), (SIN, encodings.tables["sin"])):
            table.take(self.position_ids, axis=0, out=read[name][0, 0], mode="clip")
        start = int(self.write_index[0])
        if CACHE_INDEX in read:
            read[CACHE_INDEX][0] = start
        self._bound_mask.fill(self.by_row["mask"], start)


class GenieDevice(HtpDevice):
    """A bundle of Genie on the QNN provider.

    Args:
        folder: An opened bundle.
        soc: Name of the chip; None takes the bundle's own.
        options: How to run.
        recompile: False: there are only compiled graphs.

    Raises:
        BundleError: The bundle is for another chip, or is to be computed on the CPU or recompiled.
        ProviderError: The provider is missing, cannot run here, or is older than the binaries.
    """

    reads_tokens = True
    bundle: GenieFolder
    _block_name, _first_block = "part", 1

    def __init__(
        self,
        folder: GenieFolder,
        *,
        soc: str | None = None,
        options: QnnOptions | None = None,
        recompile: bool = False,
    ) -> None:
        if recompile:
            raise BundleError(f"{folder.shown} holds no graphs that could be compiled again")
        model, target = folder.model, _target(folder, soc)
        if options is not None and options.on_cpu:
            raise BundleError(f"{folder.path} holds compiled graphs, which no CPU can run: on_cpu")
        check_available()
        _check_version(folder)
        slots = {
            rows: next(part[rows].slots for part in model.parts if part[rows].slots)
            for rows in model.widths
        }
        cache = IntegerCache(model.caches, model.num_kv_heads, model.head_dim, slots, KEYS_BY_DIM)
        # The graph for chunks is also one of those for steps, so the second of a pair is there.
        super().__init__(folder, target, cache, options or QnnOptions(), is_shared=True)
        embed = folder.embedded_rows() if model.embedded is not None else None
        self._encodings = InputEncodings(model, self.rope_tables(), embed, target)

    def buffers(self, rows: int) -> GenieBuffers:
        """New buffers for `rows` tokens."""
        model = self.bundle.model
        columns, dtype = model.context + model.widths[-1], "uint16"
        if model.hidden:
            dtype = model.hidden[0].dtype
        arrays = masked_arrays(rows, columns, model.hidden_size or 1, dtype)
        return GenieBuffers(*arrays, encodings=self._encodings)

    def rope_tables(self) -> dict[str, NDArray[Any]]:
        """Same as in the folder, but in the graphs' encoding.

        Raises:
            BundleError: A pipeline's graph for positions cannot be run.
        """
        model, tables = self.bundle.model, self.bundle.rope_tables()
        return {"cos": model.cos.quantize(tables["cos"]), "sin": model.sin.quantize(tables["sin"])}

    def graph_file(self, block: int | None, rows: int) -> str:
        """The name of a graph: binaries may hold several."""
        return self.bundle.model.parts[block or 0][rows].name

    def open_graph(self, block: int | None, rows: int) -> onnxruntime.InferenceSession:
        """Load the graph of a part for so many rows.

        Raises:
            ProviderError: The provider cannot load it; the message names the file.
        """
        graph = self.bundle.model.parts[block or 0][rows]
        path = self.bundle.file(graph.file)
        entries = {"ep.context_file_path": str(path.with_suffix(".onnx"))}
        if self.bundle.shares(graph.file):
            if is_emulator():  # it would end the process
                raise ProviderError(
                    f"{path} holds several graphs, which the HTP emulator cannot load; a device can"
                )
            entries["ep.share_ep_contexts"] = "1"
        return qnn_session(path, self._chip, self._options, entries, _wrapper(graph))

    def load_head(self) -> None:
        """Does nothing: there is no head of its own."""

    def integer_logits(self, buffers: Buffers, first: int, end: int) -> NDArray[Any]:
        """The integers of some rows' logits, which the last part has left."""
        return cast(GenieBuffers, buffers).logits[first:end]

    def bind(
        self, block: int, session: onnxruntime.InferenceSession, buffers: Buffers
    ) -> onnxruntime.IOBinding:
        """All that a part's graph reads and writes."""
        own = cast(GenieBuffers, buffers)
        graph = self.bundle.model.parts[block][buffers.rows]
        inputs, binding = graph.facts.inputs, session.io_binding()
        for name in inputs.keys() & own.values.keys():
            binding.bind_ortvalue_input(name, own.values[name])
        if graph.hidden_in is not None:
            before = own.hidden_value(block % 2, inputs[graph.hidden_in].shape)
            binding.bind_ortvalue_input(graph.hidden_in, before)
        if block == self.num_blocks - 1:
            binding.bind_ortvalue_output(graph.out, own.logits_value)
        else:
            after = own.hidden_value((block + 1) % 2, graph.facts.outputs[graph.out].shape)
            binding.bind_ortvalue_output(graph.out, after)
        for layer in graph.keys:
            self.bind_layer(binding, layer, own)
        return binding

    def bind_layer(self, binding: onnxruntime.IOBinding, layer: int, buffers: Buffers) -> None:
        """Bind the keys and values of a layer, in one tensor or in one for each head."""
        rows = buffers.rows
        graph = next(p[rows] for p in self.bundle.model.parts if layer in p[rows].keys)
        pasts, news = self.cache.past(rows)[layer], self.cache.new_rows(rows)[layer]
        for tensors, past, new in zip((graph.keys, graph.values), pasts, news, strict=True):
            names, heads = tensors[layer], len(tensors[layer].past)
            for name, array in zip(names.past, np.split(past, heads), strict=True):
                binding.bind_ortvalue_input(name, ort_value(array))
            for name, array in zip(names.new, np.split(new, heads), strict=True):
                binding.bind_ortvalue_output(name, ort_value(array))


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


def _wrapper(graph: PartGraph) -> bytes:
    """The model that makes ONNX Runtime load one graph of a context binary.

    It has one node EPContext that names the binary beside it, and stays in memory: the session is
    told a path in the bundle (`ep.context_file_path`), so that no file is written anywhere. AI
    Hub's own pipelines have the same models as files.

    Raises:
        ProviderError: The package onnx is missing.
    """
    try:
        from onnx import helper
    except ModuleNotFoundError as error:
        raise ProviderError(
            f"{graph.file}: running a bundle of Genie needs onnx: {how_to_install('genie')}"
        ) from error
    # With several graphs in a binary the node's name must be the graph's.
    node = helper.make_node(
        "EPContext",
        list(graph.facts.inputs),
        list(graph.facts.outputs),
        name=graph.name,
        domain="com.microsoft",
        main_context=1,
        embed_mode=0,
        ep_cache_context=graph.file,
        source="Qnn",
    )

    def infos(tensors: Mapping[str, TensorFacts]) -> list[Any]:
        return [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(facts.numpy_type), facts.shape
            )
            for name, facts in tensors.items()
        ]

    body = helper.make_graph(
        [node], graph.name, infos(graph.facts.inputs), infos(graph.facts.outputs)
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(body, opset_imports=opsets, ir_version=_IR_VERSION)
    content: bytes = model.SerializeToString()
    return content
