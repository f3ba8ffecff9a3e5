"""The corpus of the embedded model, its shipped files, and a short slice of its training."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))

import corpus

MODELS = Path(corpus.__file__).parent
EMBEDDED = MODELS / "embedded"


def sample(task, seeds, num=200):
    return [corpus.example(task, seed) for seed in seeds[:num]]


def test_corpus_is_the_one_that_the_model_was_trained_on():
    made = hashlib.sha256()
    for task in corpus.TASKS:
        for wanted in sample(task, corpus.HELD_OUT_SEEDS, 50):
            made.update((wanted.prompt + wanted.answer).encode())
    assert made.hexdigest() == "6b58ba078f0540688e3dd20eb674f6e8debf99e1d84eeb5455f3abe7ed242cd3"


def test_held_out_seeds_are_never_trained_on():
    assert corpus.TRAIN_SEEDS.stop <= corpus.HELD_OUT_SEEDS.start
    for task in corpus.TASKS:
        trained = {wanted.prompt for wanted in sample(task, corpus.TRAIN_SEEDS)}
        held_out = {wanted.prompt for wanted in sample(task, corpus.HELD_OUT_SEEDS)}
        assert len(held_out) == 200
        assert not trained & held_out


@pytest.mark.parametrize("task", corpus.TASKS)
def test_facts_stand_in_prompt_and_answer(task):
    for wanted in sample(task, corpus.HELD_OUT_SEEDS):
        assert wanted.facts
        for fact in wanted.facts:
            assert fact in wanted.prompt
            assert fact in wanted.answer


@pytest.mark.parametrize("task", corpus.TASKS)
def test_demo_prompt_is_a_held_out_one(task):
    text = (MODELS / "prompts" / f"{task}.txt").read_text()
    assert text in {wanted.prompt for wanted in sample(task, corpus.HELD_OUT_SEEDS)}


def test_tokenizer_splits_text_where_the_prompt_ends():
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    config = json.loads((EMBEDDED / "config.json").read_text())
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert tokenizer.token_to_id(corpus.EOS) == config["eos_token_id"]
    for task in corpus.TASKS:
        for wanted in sample(task, corpus.HELD_OUT_SEEDS, 20):
            prompt = tokenizer.encode(wanted.prompt).ids
            answer = tokenizer.encode(wanted.answer, add_special_tokens=False).ids
            assert prompt[0] == config["bos_token_id"]
            assert tokenizer.encode(wanted.prompt + wanted.answer).ids == prompt + answer
            assert tokenizer.decode(prompt) == wanted.prompt


def test_shipped_files_are_small_and_fit_block_quantisation():
    config = json.loads((EMBEDDED / "config.json").read_text())
    assert sum(file.stat().st_size for file in EMBEDDED.iterdir()) <= 12e6
    assert config["hidden_size"] % 32 == 0
    assert config["intermediate_size"] % 32 == 0


def test_first_weights_copy_and_training_lowers_the_loss():
    pytest.importorskip("jax")
    pytest.importorskip("optax")
    import numpy as np

    from model import Shape, forward, mimetic_params
    from train import Recipe, Trainer, batches

    shape = Shape(num_layers=2, hidden_size=128, num_heads=4, intermediate_size=64)
    once = np.random.default_rng(1).integers(2, shape.vocab_size, (2, 60))
    twice = np.concatenate([once, once], 1)
    positions = np.broadcast_to(np.arange(120), twice.shape)
    logits, _ = forward(mimetic_params(shape, 0), shape, twice, positions)
    guessed = np.asarray(logits).argmax(-1)[:, 61:-1]
    assert np.mean(guessed == twice[:, 62:]) > 0.3

    recipe = Recipe(num_pools=4, warmup_pools=1, batch_tokens=1024)
    trainer = Trainer.start(shape, recipe)
    trainer.set_rate()
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    batch = next(batches(tokenizer, recipe, 0))
    losses = [float(trainer.train_batch(batch)) for _ in range(6)]
    assert losses[-1] < losses[0] - 0.5
