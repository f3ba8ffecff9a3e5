"""Caches and masks in the layouts of Genie's graphs, beside plain lists. Needs no device."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import genie_facts
from coordgen_rs import open_bundle
from coordgen_rs.bundle.qnn import CacheEncodings, Encoding
from coordgen_rs.formats.genie import folder as folder_module
from coordgen_rs.formats.genie.binary import TensorFacts
from coordgen_rs.formats.genie.device import GenieDevice, InputEncodings
from coordgen_rs.runtime.qnn.device import KEYS_BY_DIM, IntegerCache

TIED = Encoding("uint8", 0.5, 128)
LAYERS, HEADS, SIZE = 2, 2, 4
SEEN, UNSEEN = 65535, 0


def cache_of(slots, key_new=TIED):
    layer = CacheEncodings(TIED, TIED, key_new, TIED)
    return IntegerCache([layer] * LAYERS, HEADS, SIZE, slots, KEYS_BY_DIM)


def write(cache, rows, numbers):
    """Let a graph of a width give rows that all hold their number."""
    for keys, values in cache.new_rows(rows):
        keys[:] = np.asarray(numbers, np.uint8)
        values[:] = np.asarray(numbers, np.uint8)[:, None] + 100


def held(cache, rows):
    """The numbers of the committed tokens as the graph of a width reads them, all layers alike."""
    found = []
    for keys, values in cache.past(rows):
        assert keys.shape[:3] == (HEADS, 1, SIZE)
        assert np.array_equal(keys, np.broadcast_to(keys[:1, :, :1], keys.shape))
        found.append(keys[0, 0, 0, : cache.length].tolist())
        assert values[0, 0, : cache.length, 0].tolist() == [each + 100 for each in found[-1]]
    assert all(other == found[0] for other in found)
    return found[0]


@given(
    slots=st.sampled_from([{1: 31, 8: 24}, {1: 32, 8: 32}]),
    steps=st.lists(
        st.tuples(st.sampled_from([1, 8]), st.sets(st.integers(0, 7)), st.integers(0, 9)),
        max_size=8,
    ),
)
def test_all_widths_hold_the_committed_tokens(slots, steps):
    cache, expected, number = cache_of(slots), [], 0
    for rows, chosen, forgotten in steps:
        numbers = [(number + row) % 100 for row in range(rows)]
        number += rows
        write(cache, rows, numbers)
        cache.note(range(LAYERS), rows)
        path = sorted(row for row in chosen if row < rows)[: 24 - len(expected)]
        cache.commit(np.array(path, np.uint32))
        expected += [numbers[row] for row in path]
        assert held(cache, 1) == held(cache, 8) == expected
        del expected[max(len(expected) - forgotten, 0) :]
        cache.rewind(len(expected))


def test_layers_that_ran_in_parts_and_whole_are_committed_together():
    cache = cache_of({1: 31, 8: 24})
    write(cache, 8, range(8))
    cache.note([0], 8)
    for row in range(8):
        for keys, values in cache.new_rows(1):
            keys[:], values[:] = row, row + 100
        cache.store([1], 1, row)
    cache.commit(np.arange(8, dtype=np.uint32))
    assert held(cache, 1) == held(cache, 8) == list(range(8))


def test_rows_beyond_the_last_slot_of_the_wide_graph_are_left_out_there():
    cache = cache_of({1: 31, 8: 24})
    cache.rewind(20)
    write(cache, 8, range(8))
    cache.store(range(LAYERS), 8, 20)
    assert cache.past(8)[0][0][0, 0, 0, 20:].tolist() == [0, 1, 2, 3]
    assert cache.past(1)[0][0][0, 0, 0, 20:28].tolist() == list(range(8))


def test_rows_under_another_encoding_are_stored_under_that_of_the_past():
    cache = cache_of({8: 24}, key_new=dataclasses.replace(TIED, scale=1.0))
    for keys, _ in cache.new_rows(8):
        keys[:] = np.arange(8, dtype=np.uint8) + 128
    cache.note(range(LAYERS), 8)
    cache.commit(np.array([0, 3], np.uint32))
    assert cache.past(8)[0][0][0, 0, 0, :2].tolist() == [128, 134]


def test_saved_tokens_are_put_back_for_all_widths():
    cache = cache_of({1: 31, 8: 24})
    write(cache, 8, range(8))
    cache.note(range(LAYERS), 8)
    cache.commit(np.arange(8, dtype=np.uint32))
    saved = cache.copied(5)
    write(cache, 8, range(50, 58))
    cache.rewind(0)
    cache.commit(np.arange(8, dtype=np.uint32))
    cache.put(saved, 5)
    assert held(cache, 1) == held(cache, 8) == [0, 1, 2, 3, 4]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "can_read", lambda: False)
    return open_bundle(genie_facts.write_described(tmp_path / "bundle")).model


def natively(model):
    """The same graphs, as if they wrote new rows among all slots."""
    parts = []
    for part in model.parts:
        graphs = {}
        for rows, graph in part.items():
            index = {"cache_index": TensorFacts((1,), "int32")}
            facts = dataclasses.replace(graph.facts, inputs={**graph.facts.inputs, **index})
            graphs[rows] = dataclasses.replace(graph, facts=facts, slots=32)
        parts.append(graphs)
    return dataclasses.replace(model, parts=parts)


def buffers_of(model, rows):
    table = np.arange(64, dtype=np.uint16).reshape(32, 2)
    target = SimpleNamespace(mask=Encoding("uint16", 1.0, SEEN), mask_value=UNSEEN - SEEN)
    encodings = InputEncodings(model, {"cos": table, "sin": table + 1}, None, target)
    device = SimpleNamespace(bundle=SimpleNamespace(model=model), _encodings=encodings)
    return GenieDevice.buffers(device, rows)


def test_hidden_states_of_a_part_are_those_of_its_rows(model):
    whole = buffers_of(model, 8)
    for place, states in enumerate(whole.hidden):
        states[0] = (10 * place + np.arange(8))[:, None]
        part = whole.part(3, 1).hidden_value(place, (1, 1, states.shape[-1])).numpy()
        assert set(part.flat) == {10 * place + 3}


def read(buffers, name):
    return buffers.values[name].numpy()


@pytest.mark.parametrize("starts", [[5], [5, 9, 3], [20, 0, 7]])
@pytest.mark.parametrize("is_native", [False, True])
def test_a_row_sees_the_committed_tokens_and_its_own_path(model, starts, is_native):
    buffers = buffers_of(natively(model) if is_native else model, 8)
    parents = np.array([0, 0, 0, 1, 2, 3, 4, 0], np.uint32)
    for start in starts:
        buffers.inputs.fill(np.arange(8, dtype=np.uint32), parents, start)
        buffers.write_index[0] = start
        buffers.before_run()
        mask, first = read(buffers, "attention_mask")[0, 0], start if is_native else 24
        for row in range(8):
            path, node = {row}, row
            while node:
                node = int(parents[node])
                path.add(node)
            seen = {*range(start), *(first + each for each in path)}
            assert set(np.flatnonzero(mask[row] == SEEN)) == seen
        assert set(np.unique(mask)) <= {SEEN, UNSEEN}
        assert read(buffers, "input_ids").tolist() == [list(range(8))]
        positions = [start + depth for depth in (0, 1, 1, 2, 2, 3, 3, 1)]
        for offset, name in enumerate(("position_ids_cos", "position_ids_sin")):
            found = read(buffers, name)[0, 0, :, 0].tolist()
            assert found == [2 * position + offset for position in positions]
        if is_native:
            assert read(buffers, "cache_index").tolist() == [start]
