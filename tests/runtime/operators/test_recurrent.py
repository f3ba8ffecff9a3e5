"""The operators of recurrent layers in ONNX Runtime."""

import numpy as np
import pytest

from operators import BYTE, FLOAT, INTEGER, operator_session, run_in_place

NODES = 8
TREE = ("parents", "sequences", "lengths", "span", "reads", "pending")
PARENTS = [-1, -1, 0, 0, 1, 3, -1]
SEQUENCES = [0, 1, 0, 0, 1, 0, 0]
CHANNELS, TAPS = 40, 4
HEADS, KEYS, VALUES = 4, 16, 32
WIDTH = HEADS * VALUES


def padded(count):
    return -(-count // 16) * 16


HEADS_SIZES = (HEADS * KEYS * VALUES, padded(2 * KEYS + HEADS * (VALUES + 1)))
# Of each operator its attributes, weights by shape, columns of its rows, numbers of its states and
# updates, and columns that it gives.
OPERATORS = {
    "CausalConvolution": (
        {"channels": CHANNELS, "taps": TAPS, "first": 2, "activation": "silu", "gated": 0},
        {"weights": (TAPS, CHANNELS), "bias": (CHANNELS,)},
        {"rows": CHANNELS + 5},
        ((TAPS - 1) * padded(CHANNELS), padded(CHANNELS)),
        CHANNELS,
    ),
    "GatedDelta": (
        {
            "key_heads": 2,
            "value_heads": HEADS,
            "key_dim": KEYS,
            "value_dim": VALUES,
            "columns": [0, WIDTH, WIDTH + HEADS],
            "epsilon": 1e-6,
        },
        {"a": (HEADS,), "dt_bias": (HEADS,), "norm": (VALUES,)},
        {"rows": 2 * 2 * KEYS + WIDTH, "projected": WIDTH + 2 * HEADS},
        HEADS_SIZES,
        WIDTH,
    ),
    "SelectiveUpdate": (
        {
            "heads": HEADS,
            "head_dim": VALUES,
            "groups": 2,
            "state_dim": KEYS,
            "columns": [0, WIDTH],
            "least_step": 0.0,
            "most_step": float("inf"),
            "epsilon": 1e-5,
        },
        {"a": (HEADS,), "dt_bias": (HEADS,), "d": (HEADS,), "norm": (WIDTH,)},
        {"rows": WIDTH + 2 * 2 * KEYS, "projected": WIDTH + HEADS},
        HEADS_SIZES,
        WIDTH,
    ),
}


class Layer:
    """An operator with its weights and buffers, and what was committed."""

    def __init__(self, operator, sequences=2, **attributes):
        own, weights, self.columns, (state, update), self.width = OPERATORS[operator]
        random = np.random.default_rng(1)
        self.weights = {n: random.uniform(-1, 1, s).astype(np.float32) for n, s in weights.items()}
        if "a" in weights:
            self.weights["a"] = -np.abs(self.weights["a"])
        self.state = np.zeros((sequences, 2, 64 + 4 * state), np.uint8)
        self.updates = np.zeros((2, 64 + NODES * (64 + 4 * update)), np.uint8)
        self.lengths, self.pending = [0] * sequences, []
        kinds = dict.fromkeys(self.columns, (FLOAT, 2))
        kinds |= {name: (FLOAT, len(shape)) for name, shape in weights.items()}
        kinds |= {"state": (BYTE, 3), "updates": (BYTE, 2)}
        kinds |= dict.fromkeys(TREE, (INTEGER, 1))
        outputs = {"given": (FLOAT, 2), "state_out": (BYTE, 3), "updates_out": (BYTE, 2)}
        self.session = operator_session(operator, kinds, outputs, **(own | attributes))

    def run(self, rows, parents, sequences, reads=(0, 0), **changed):
        """Run rows, each the numbers of a token, in place; what they give."""
        fed = {
            name: np.stack([row[name] for row in rows]).astype(np.float32) for name in self.columns
        }
        tree = {
            "parents": parents,
            "sequences": sequences,
            "lengths": self.lengths,
            "span": [0, len(parents)],
            "reads": reads,
            "pending": self.pending,
        }
        tree = {name: np.array(numbers, np.int32) for name, numbers in (tree | changed).items()}
        given = np.full((len(rows), self.width), np.nan, np.float32)
        fed |= self.weights | {"state": self.state, "updates": self.updates} | tree
        written = {"given": given, "state_out": self.state, "updates_out": self.updates}
        run_in_place(self.session, fed, written)
        return given


def tokens(layer, count, seed=0):
    random = np.random.default_rng(seed)
    return [
        {name: random.uniform(-2, 2, columns) for name, columns in layer.columns.items()}
        for _ in range(count)
    ]


def read(operator):
    """A layer that has read five tokens of one sequence and two of another."""
    layer = Layer(operator)
    prompt = tokens(layer, 7)
    layer.run(prompt, [-1, 0, 1, 2, 3, -1, 5], [0] * 5 + [1] * 2, reads=(1, 1))
    layer.lengths = [5, 2]
    return layer, [prompt[:5], prompt[5:]]


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_node_has_the_bits_of_its_path_token_by_token(operator):
    layer, prompts = read(operator)
    nodes = tokens(layer, len(PARENTS), seed=1)
    padding = {name: np.full(n, np.nan) for name, n in layer.columns.items()}
    given = layer.run([*nodes, padding], PARENTS, SEQUENCES)
    np.testing.assert_array_equal(given[len(PARENTS) :], 0)
    for node in range(len(PARENTS)):
        path = [node]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        alone = Layer(operator, sequences=1)
        for token in [*prompts[SEQUENCES[node]], *(nodes[node] for node in path)]:
            row = alone.run([token], [-1], [0], reads=[0])
            alone.lengths[0] += 1
            alone.pending = [0]
        np.testing.assert_array_equal(row[0], given[node])


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_does_not_fit_is_refused_by_name(operator):
    layer, _ = read(operator)
    (row,) = tokens(layer, 1)
    before = layer.state.copy()
    for changed, why in (
        ({"lengths": [6, 2]}, "sequence 0 is of 5 tokens, but 6 are committed, 0 of them pending"),
        ({"lengths": [5]}, "states of 2 sequences, lengths of 1, and 2 that say"),
        ({"parents": [1]}, "node 0 has the parent 1, which is no earlier node"),
        ({"span": [0]}, "do not fit each other"),
    ):
        with pytest.raises(Exception, match=why):  # ONNX Runtime has classes of its own
            layer.run([row], **({"parents": [-1], "sequences": [0]} | changed))
    np.testing.assert_array_equal(layer.state, before)
    layer.state = layer.state[:, :, :-4].copy()
    with pytest.raises(Exception, match=r"a state has \d+ bytes, not"):
        layer.run([row], [-1], [0])


@pytest.mark.parametrize(
    ("operator", "wrong", "why"),
    [
        ("CausalConvolution", {"taps": 9}, "out of range"),
        ("CausalConvolution", {"activation": "tanh"}, "activation is unknown"),
        ("GatedDelta", {"key_heads": 3}, "out of range"),
        ("GatedDelta", {"columns": [0]}, "there are three columns"),
        ("SelectiveUpdate", {"groups": 0}, "out of range"),
    ],
)
def test_layers_that_cannot_be_are_refused(operator, wrong, why):
    with pytest.raises(Exception, match=why):
        Layer(operator, **wrong)
