"""The table of `docs/recurrent-layers.md`: what states and updates take."""

import pytest

from checkpoints import ROOT
from coordgen_rs.convert.cpu.layers import state_sizes
from coordgen_rs.convert.families.model_config import DeltaNet, SelectiveState, ShortConvolution

KINDS = {
    "Qwen3.5-0.8B and 2B | 18 of 24": (DeltaNet(16, 16, 128, 128, 4), 18),
    "Granite 4.0 h-1B | 36 of 40": (SelectiveState(48, 64, 1, 128, 4, True, 0.0, 1e9), 36),
    "LFM2-1.2B | 10 of 16": (ShortConvolution(2048, 3), 10),
}


@pytest.mark.parametrize("name", KINDS)
def test_the_table_tells_what_layers_keep(name):
    kind, layers = KINDS[name]
    sizes = state_sizes(kind)
    state, update = (
        4 * sum(getattr(it, numbers) for it in sizes) for numbers in ("numbers", "node_numbers")
    )
    cells = [
        f"{state / 1e3:,.0f}",
        f"{update / 1e3:,.0f}",
        f"{layers * state / 1e6:.1f}",
        f"{layers * 32 * update / 1e6:.1f}",
    ]
    page = (ROOT / "docs" / "recurrent-layers.md").read_text()
    assert f"| {name} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize(("name", "share"), [("Qwen3.5-0.8B", 64), ("Granite", 121)])
def test_the_page_tells_the_share_of_an_update(name, share):
    (kind,) = (kind for it, (kind, _) in KINDS.items() if it.startswith(name))
    matrix = state_sizes(kind)[-1]
    assert round(matrix.numbers / matrix.node_numbers) == share
