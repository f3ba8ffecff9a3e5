"""A short slice of the embedded model's training, run again; needs `make setup-train`."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import corpus

torch = pytest.importorskip("torch", reason="needs `make setup-train`")

from model import DRAFT_SHAPE, Shape, forward, mimetic_params  # noqa: E402
from recipe import Recipe  # noqa: E402
from rows import Rows, fill, pool, probe_rows  # noqa: E402
from train import Trainer, exact_share, run  # noqa: E402

MODELS = Path(__file__).parents[3] / "models"
TOKENIZER = MODELS / "embedded" / "tokenizer.json"
SMALL = replace(DRAFT_SHAPE, intermediate_size=64)
SLICE = Recipe(num_pools=2, pool_steps=3, batch_rows=2, row_len=384)


def causal(rows: int) -> torch.Tensor:
    return torch.ones(rows, rows, dtype=torch.bool).tril()[None]


def test_first_weights_copy_what_stood_there_before():
    shape = Shape(num_layers=2, hidden_size=128, num_heads=4, intermediate_size=64)
    once = torch.from_numpy(np.random.default_rng(1).integers(2, shape.vocab_size, (1, 60)))
    twice = torch.cat([once, once], 1)
    positions = torch.arange(120)[None]
    logits = forward(mimetic_params(shape, 0), shape, twice, positions, causal(120))
    guessed = logits.argmax(-1)[:, 61:-1]
    assert (guessed == twice[:, 62:]).float().mean() > 0.3


def test_a_turn_is_predicted_as_if_it_alone_came_after_the_context():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    made = corpus.scene("summary", 5)
    both, alone = Rows.empty(1, 512), Rows.empty(1, 512)
    assert fill(both, 0, tokenizer, made, made.turns, 0.1)
    assert fill(alone, 0, tokenizer, made, made.turns[1:2], 0.1)
    params = mimetic_params(SMALL, 0)
    logits = {}
    for name, rows in {"both": both, "alone": alone}.items():
        ids, _, _, positions, segments = rows.tensors(slice(None))
        segment = segments[:, :, None]
        seen = ((segments[:, None] == 0) | (segments[:, None] == segment)) & causal(512)
        made_logits = forward(params, SMALL, ids, positions, seen)
        last = int(segments.max())
        logits[name] = made_logits[0, (segments[0] == last)]
    torch.testing.assert_close(logits["both"], logits["alone"], rtol=1e-3, atol=1e-3)


def test_rows_hold_what_a_user_would_send_and_weigh_the_answer():
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    wanted = corpus.example("rag", 7)
    rows = Rows.empty(1, 512)
    made = corpus.scene("rag", 7)
    assert fill(rows, 0, tokenizer, made, made.turns[:1], 0.1)
    prompt = tokenizer.encode(wanted.prompt).ids
    answer = [*tokenizer.encode(wanted.answer, add_special_tokens=False).ids, 1]
    used = np.flatnonzero(rows.segments[0] >= 0)
    assert rows.ids[0, used].tolist() == prompt + answer
    assert rows.targets[0, rows.weights[0] == 1.0].tolist() == answer
    assert rows.positions[0, used].tolist() == list(range(len(used)))


def test_pools_are_the_same_on_every_run_and_never_share_a_scene():
    first, again, second = (pool(TOKENIZER, SLICE, number) for number in (0, 0, 1))
    np.testing.assert_array_equal(first.ids, again.ids)
    contexts = [
        {row[segments == 0].tobytes() for row, segments in zip(p.ids, p.segments, strict=True)}
        for p in (first, second)
    ]
    assert not contexts[0] & contexts[1]


def test_a_slice_of_the_run_lowers_the_loss_and_goes_on_where_it_stopped(tmp_path):
    whole = Trainer(SMALL, SLICE)
    losses = [whole.train_pool(pool(TOKENIZER, SLICE, number)) for number in range(2)]
    assert losses[1] < losses[0] - 0.5

    half = Trainer(SMALL, SLICE)
    assert half.train_pool(pool(TOKENIZER, SLICE, 0)) == losses[0]
    half.store(tmp_path / "half.pt")
    resumed = Trainer(SMALL, SLICE)
    resumed.resume(tmp_path / "half.pt")
    assert resumed.train_pool(pool(TOKENIZER, SLICE, 1)) == losses[1]


def test_the_kept_curve_begins_as_the_recipe_does():
    curve = (MODELS / "embedded" / "curve.txt").read_text()
    first = re.match(r"before the first step: loss ([0-9.]+)\n", curve)
    assert first is not None
    rows = pool(TOKENIZER, replace(Recipe(), pool_steps=1), 0)
    begun = Trainer(Shape(), Recipe()).first_loss(rows)
    assert begun == pytest.approx(float(first[1]), abs=0.02)


def test_a_run_writes_weights_that_are_scored(tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    run(replace(SLICE, num_pools=1), SMALL, tmp_path, tmp_path / "run.pt", 0.0)
    assert "summary" in capsys.readouterr().out
    assert (tmp_path / "model.safetensors").stat().st_size > 100_000
    probe = probe_rows(Tokenizer.from_file(str(TOKENIZER)), "ui", replace(SLICE, row_len=512))
    assert exact_share(mimetic_params(SMALL, 0), SMALL, probe) == 0.0
