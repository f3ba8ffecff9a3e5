"""Options of the QNN provider: checked before any session is made. Needs no provider."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordgen_rs.bundle.qnn import SOCS, Encoding
from coordgen_rs.convert.qnn import compile as compile_module
from coordgen_rs.errors import OptionError
from coordgen_rs.loading.directory import ProviderChoice
from coordgen_rs.runtime.qnn import provider
from coordgen_rs.runtime.qnn.options import QnnOptions, parse_options, soc_named


def test_fields_become_the_providers_own_names():
    options = QnnOptions(
        performance_mode="burst",
        vtcm_mb=8,
        finalization_mode=3,
        context_priority="high",
        shared_memory=True,
        spill_fill=False,
        offload_io_quantization=True,
        profiling="detailed",
        profiling_file=Path("profile.csv"),
        extra={"extended_udma": "1"},
    )
    assert options.provider_options(soc_named("x-elite")) == {
        "htp_arch": "73",
        "soc_model": "60",
        "enable_block_quant_weight_optimization": "1",
        "htp_performance_mode": "burst",
        "vtcm_mb": "8",
        "htp_graph_finalization_optimization_mode": "3",
        "qnn_context_priority": "high",
        "enable_htp_shared_memory_allocator": "1",
        "enable_htp_spill_fill_buffer": "0",
        "offload_graph_io_quantization": "1",
        "profiling_level": "detailed",
        "profiling_file_path": "profile.csv",
        "extended_udma": "1",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"performance_mode": "fast"}, "performance_mode is 'fast', but must be one of default"),
        ({"context_priority": "urgent"}, "context_priority is 'urgent'"),
        ({"profiling": "all"}, "profiling is 'all'"),
        ({"vtcm_mb": 0}, "vtcm_mb is 0, but must be at least 1"),
        ({"finalization_mode": 4}, "finalization_mode is 4, but must be at most 3"),
        ({"profiling_file": Path("x.csv")}, "profiling is off"),
        ({"extra": {"vtcm_mb": "4"}}, "set by an option of its own"),
        ({"extra": {"soc_model": "1"}}, "set by an option of its own"),
        ({"extra": {"vtcm": "4"}}, "extra holds vtcm, which the QNN provider does not know"),
    ],
)
def test_wrong_options_are_named(given, message):
    with pytest.raises(OptionError, match=message):
        QnnOptions(**given)


def test_options_are_read_from_text():
    options = parse_options(["vtcm_mb=4", "spill_fill=1", "profiling=off", "device_id=1"])
    assert options == QnnOptions(
        vtcm_mb=4, spill_fill=True, profiling="off", extra={"device_id": "1"}
    )


@pytest.mark.parametrize("text", ["vtcm_mb", "vtcm_mb=much", "spill_fill=yes", "vtcm=4"])
def test_malformed_text_is_refused(text):
    with pytest.raises(OptionError, match=r"vtcm|spill_fill"):
        parse_options([text])


def test_an_unknown_chip_is_refused_and_no_two_share_a_number():
    with pytest.raises(OptionError, match="'8-gen-9', but must be one of 8-gen-1, 8-gen-2"):
        soc_named("8-gen-9")
    assert len({soc.model for soc in SOCS.values()}) == len(SOCS)


@given(
    st.floats(-1e3, 0),
    st.floats(0, 1e3),
    st.sampled_from(["uint8", "uint16"]),
    st.lists(st.floats(0, 1), min_size=1),
)
def test_integers_stand_for_the_numbers_they_were_made_from(low, high, dtype, shares):
    for encoding in (
        Encoding.of_range(low, high, dtype),
        Encoding.symmetric(max(-low, high), dtype),
    ):
        values = np.array([low + share * (high - low) for share in shares], np.float32)
        integers = encoding.quantize(values)
        error = np.abs(encoding.dequantize(integers) - values)
        assert error.max() <= encoding.scale * 1.01
        assert np.array_equal(encoding.quantize(encoding.dequantize(integers)), integers)
        assert encoding.dequantize(encoding.quantize(np.zeros(1, np.float32)))[0] == 0


def test_graphs_on_the_cpu_need_no_provider(monkeypatch):
    options = QnnOptions(on_cpu=True, vtcm_mb=8)
    assert "on_cpu" not in options.provider_options(soc_named("8-elite"))
    with pytest.raises(OptionError, match="extra holds on_cpu"):
        parse_options(["on_cpu=1"])
    monkeypatch.setattr(provider, "version", lambda: pytest.fail("asked for the provider"))
    bundle = SimpleNamespace(manifest=SimpleNamespace(provider="qnn"))
    assert "on_cpu=True" in ProviderChoice(options=options).conditions(bundle)[-1]


def test_nothing_is_compiled_for_the_cpu(monkeypatch, tmp_path):
    monkeypatch.setattr(compile_module, "_qnn_target", lambda bundle: None)
    monkeypatch.setattr(compile_module, "open_bundle", lambda path: None)
    with pytest.raises(OptionError, match="nothing is compiled for the CPU"):
        compile_module.compile_bundle(tmp_path, options=QnnOptions(on_cpu=True))
