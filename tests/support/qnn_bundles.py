"""Small bundles for Qualcomm's HTP, exported once a run, and what tests do with them."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from answers import tokens_of
from checkpoints import CHECKPOINTS
from coordgen_rs import Bundle, generate, make_drafter, plain
from coordgen_rs.convert.families.checkpoint import Checkpoint
from coordgen_rs.convert.qnn.calibration import WatchedGraph
from coordgen_rs.convert.qnn.exporter import export_qnn
from coordgen_rs.convert.qnn.graph import block_graph, head_graph, text_inputs
from coordgen_rs.convert.writer import cut_layers
from coordgen_rs.runtime.ort_session import OrtSession
from coordgen_rs.runtime.qnn.device import QnnDevice

SMALL: dict[str, Any] = {"context": 128, "prefill_rows": 32, "decode_rows": 8}
"""Few rows and slots: the emulator's time is their product."""
PROMPT = "Once upon a time there was a little cat. The little cat was happy. One day the little"

needs_emulator = pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_qnn") is None, reason="no onnxruntime-qnn here"
)


def qnn_bundle(folder: Path, name: str, soc: str, **options: Any) -> Path:
    """Export a checkpoint of `checkpoints.CHECKPOINTS`."""
    if not CHECKPOINTS[name].exists():
        pytest.skip(f"no {name} here")
    out = folder / f"{name}-{soc}"
    export_qnn(CHECKPOINTS[name], out, soc=soc, **(SMALL | options))
    return out


def float_logits(source: Checkpoint, token_ids: np.ndarray, num_blocks: int) -> np.ndarray:
    """What the float graphs of a checkpoint make of a text: `(tokens, vocab_size)`."""
    config = source.config
    hidden = source.first_hidden_tensor().load()[token_ids][np.newaxis]
    for layers in cut_layers(config.num_layers, num_blocks):
        inputs = {"hidden": hidden, **text_inputs(config, layers, len(token_ids))}
        hidden = WatchedGraph(block_graph(source, layers)).run(inputs)["hidden_out"]
    return WatchedGraph(head_graph(source)).run({"hidden": hidden})["logits"][0]


def cached_sessions(folder: Path) -> Callable[[str, str], OrtSession]:
    """A function from a checkpoint's name and a chip to an open session."""
    return cache(
        lambda name, soc: OrtSession(QnnDevice(Bundle.open(qnn_bundle(folder, name, soc))))
    )


def check_tokens(session: OrtSession, prompt: NDArray[np.uint32], expected: list[int]) -> None:
    """A session says what is expected, plainly and with drafts of both ways to commit."""
    options: dict[str, Any] = {"max_new_tokens": len(expected)}
    assert tokens_of(plain(session, prompt, **options)) == expected
    for commit in ("canonical", "compact"):
        drafter = make_drafter(session, "auto", commit)
        assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == expected, commit
