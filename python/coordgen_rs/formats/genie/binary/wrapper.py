"""The model that makes ONNX Runtime load one graph of a context binary.

In: a graph. Out: an ONNX model as bytes, with one node EPContext that names the binary beside it.
It stays in memory: the session is told a path in the bundle (`ep.context_file_path`), so that no
file is written anywhere. AI Hub's own pipelines have the same models as files.
"""

from collections.abc import Mapping
from typing import Any

from coordgen_rs.errors import ProviderError
from coordgen_rs.errors.extras import how_to_install
from coordgen_rs.formats.genie.binary.parts import PartGraph
from coordgen_rs.formats.genie.binary.tensors import TensorFacts

_OPSET, _IR_VERSION = 21, 10


def wrapper(graph: PartGraph) -> bytes:
    """The model of a graph, with its inputs and outputs by their own names.

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
