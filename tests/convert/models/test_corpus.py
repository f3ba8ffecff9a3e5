"""The corpus of the embedded model, its shipped files, and how they are scored."""

import hashlib
import json
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import corpus
import evaluate

MODELS = Path(corpus.__file__).parent
EMBEDDED = MODELS / "embedded"


def sample(task, seeds, num=200):
    return [corpus.example(task, seed) for seed in seeds[:num]]


def test_corpus_is_the_one_that_the_model_was_trained_on():
    made = hashlib.sha256()
    for task in corpus.TASKS:
        for wanted in sample(task, corpus.HELD_OUT_SEEDS, 50):
            made.update((wanted.prompt + wanted.answer).encode())
    assert made.hexdigest() == "61b66715edf02d0910c6a5f7de75b4c36194536ffe1bfedc72851be75f3fb772"


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


def test_drills_change_nothing_in_a_scene_and_ask_for_facts_of_its_context():
    for task in ("summary", "rag", "reply"):
        made = corpus.scene(task, corpus.HELD_OUT_SEEDS[3])
        assert corpus.example(task, corpus.HELD_OUT_SEEDS[3]).answer == made.turns[0].answer
        assert len(made.drills) >= 6
        for drill in made.drills:
            assert all(fact in made.context and fact in drill.answer for fact in drill.facts)
            assert corpus.ask(made, drill).endswith("Answer:\n")


def test_the_embedded_model_answers_held_out_examples(bundle_of, tmp_path, monkeypatch, capsys):
    arguments = ["evaluate.py", str(bundle_of("embedded", "fp32")), "--examples", "8"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--prompts", str(tmp_path)])
    evaluate.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    facts = {task: float(share) for task, _, share, *_ in rows}
    assert list(facts) == list(corpus.TASKS)
    assert min(facts["rag"], facts["ui"]) >= 0.75
    assert {path.stem for path in tmp_path.iterdir()} == set(corpus.TASKS)


def test_scores_count_what_is_right_and_what_is_copied():
    assert evaluate.ngram_overlap([1, 2, 3, 4, 5], [2, 3, 4, 5, 9]) == 0.5
    assert evaluate.ngram_overlap([1, 2], [1, 2, 3]) is None
