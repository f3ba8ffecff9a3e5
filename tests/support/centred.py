"""A layer before and after its keys and values are centred and made of like size."""

import numpy as np

from coordgen_rs.convert.qnn.calibration import WatchedGraph
from coordgen_rs.convert.qnn.graph import block_graph, key_value_names, text_inputs
from coordgen_rs.convert.qnn.outliers import equalised_channels, key_channels, value_channels


def key_values(outputs, layer):
    return [outputs[key_value_names(layer, kind)[1]][0] for kind in ("key", "value")]


def assert_centring_changes_no_output(source, layer):
    """Outputs stay within 1e-4; what is stored fits 127 steps, whole ones for the first token."""
    config, layers = source.config, range(layer, layer + 1)
    hidden = np.random.default_rng(2).standard_normal((1, 40, config.hidden_size)) + 1
    inputs = {"hidden": hidden.astype(np.float32), **text_inputs(config, layers, 40)}
    graph = block_graph(source, layers)
    before = WatchedGraph(graph).run(inputs)
    keys, values = key_values(before, layer)
    channels = key_channels(config, layer, 40, [keys], 0), value_channels([values], 0)
    equalised_channels(config, layer, graph, *channels)
    after = WatchedGraph(graph).run(inputs)
    assert before["hidden_out"].std() > 0.1
    assert np.abs(after["hidden_out"] - before["hidden_out"]).max() < 1e-4
    for got, known in zip(key_values(after, layer), channels, strict=True):
        steps = got / (known.size / 127)
        assert np.abs(steps).max() < 127.1
        if known.centre.any():
            assert np.abs(steps[:, 0] - np.rint(steps[:, 0])).max() < 0.02
