"""`coordgen bench --records`: what a target expected, and replays that learn from it as live."""

import base64
import json
import zlib

import numpy as np
import pytest

from coordgen_rs._core import top_k
from coordgen_rs.generation.drafting.common_phrases import phrase_table_at
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.lab.bench.prompts import Prompt, PromptsError, read_prompts
from coordgen_rs.lab.bench.recorder import RecordingDrafter, recorded
from coordgen_rs.lab.bench.workbench import Settings, Workbench, answer
from coordgen_rs.lab.replay.records import RecordsError, Source, read_records, tokenized
from coordgen_rs.lab.replay.rows import RecordedRows, SeenStep
from coordgen_rs.lab.replay.run import DRAFTERS, ROW_DRAFTERS, replay
from prompts import PROMPTS

MOST_TOKENS = 160


@pytest.fixture(scope="module")
def bench(bundle_of, tmp_path_factory):
    """A workbench on two prompts, of a task each, where rows are free."""
    data = tmp_path_factory.mktemp("records") / "prompts.jsonl"
    data.write_text("\n".join(json.dumps(prompt._asdict()) for prompt in PROMPTS))
    bundle = bundle_of("embedded", "fp32")
    return Workbench.open(
        Settings(
            bundle, data, max_new_tokens=MOST_TOKENS, is_free=True, remembering=False, threads=1
        )
    )


def replayed_of(bench, lines, path):
    """Records as a replay has them, the size of the vocabulary, and the table of phrases."""
    tokenizer = bench.settings.bundle
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return *tokenized(Source(path, tokenizer, None)), phrase_table_at(tokenizer / "tokenizer.json")


@pytest.fixture(scope="module")
def narrow(bench, tmp_path_factory):
    """What `replayed_of` tells of records without drafts."""
    return replayed_of(bench, recorded(bench, []), tmp_path_factory.mktemp("narrow") / "records")


def drafted_live(bench, draft, prompt):
    """The trees of a live run, as lists of tokens and of parents."""
    drafter = make_drafter(bench.session, draft, free_rows=True, earlier_requests=False)
    recording = RecordingDrafter(drafter)
    answered = answer(bench.session, prompt, recording, max_new_tokens=MOST_TOKENS)
    assert answered.stats.finish_reason == "stop"
    return [(step.tokens.tolist(), step.parents.tolist()) for step in recording.steps]


def drafted_in_replay(bench, record, of_tokenizer, draft):
    """The trees of a replay, and its result."""
    assert "compact" in bench.session.exact_commits
    trees = []
    result = replay(
        [record],
        drafter=draft,
        budget=bench.session.step_inputs[-1].rows - 1,
        vocab_size=of_tokenizer[0],
        phrases=of_tokenizer[1],
        on_step=lambda _, tree, __: trees.append(tuple(part.tolist() for part in tree)),
    )
    return trees, result


def test_calibration_is_replayed_as_it_drafts_live(bench, narrow):
    records, *of_tokenizer = narrow
    assert len(records) == len(PROMPTS)
    drafting = ["automaton", "calibration"]
    for record in records:
        trees, found = drafted_in_replay(bench, record, of_tokenizer, drafting)
        assert trees == drafted_live(bench, drafting, record.prompt)
        assert (found.tokens, found.steps) == (len(record.answer), len(trees))
        without_rows = record._replace(rows=None)
        others, without = drafted_in_replay(bench, without_rows, of_tokenizer, drafting)
        assert others != trees
        assert without.known_share is None


@pytest.mark.parametrize("method", ["auto", "coordgen", "diaa", "token-recycling", "blend"])
def test_where_all_rows_are_known_a_replay_is_the_live_run(bench, narrow, tmp_path, method):
    records, *of_tokenizer = replayed_of(bench, recorded(bench, [method]), tmp_path / "wide")
    for record, of_text in zip(records, narrow[0], strict=True):
        trees, found = drafted_in_replay(bench, record, of_tokenizer, method)
        assert found.known_share == 1
        assert trees == drafted_live(bench, method, record.prompt)
        assert record.answer.tolist() == of_text.answer.tolist()
        assert drafted_in_replay(bench, of_text, of_tokenizer, method)[1].known_share < 1


def test_all_methods_without_a_draft_model_replay_from_rows(narrow):
    assert set(ROW_DRAFTERS) > set(DRAFTERS)
    records, vocab_size, _ = narrow
    assert "coordgen:k=2:depth=3" in ROW_DRAFTERS
    for method in (*ROW_DRAFTERS, "coordgen:k=2:depth=3"):
        result = replay(records, drafter=method, budget=4, vocab_size=vocab_size)
        assert result.tokens == sum(len(record.answer) for record in records)
        assert 0 < result.known_share <= 1


LINE = {
    **{"id": "1", "task": "t", "prompt": "p", "output": "o", "model": "m"},
    **{"prompt_ids": [1, 2], "answer_ids": [3, 4], "end_token_ids": [4]},
    **{"vocab_size": 9, "tokenizer_sha256": "a"},
}


def rows(text, branches=(), num_rows=3):
    ids = np.tile(np.arange(8, dtype=np.uint32), (num_rows, 1))
    probabilities = np.full((num_rows, 8), 1 / 8, np.float32)
    tokens, parents = np.array(branches, np.uint32).reshape(-1, 2).T
    return RecordedRows(np.array(text, np.uint32), (tokens, parents), (ids, probabilities))


def packed(values, kind):
    return base64.b64encode(zlib.compress(np.array(values, kind).tobytes())).decode()


def test_records_with_tokens_are_taken_as_they_stand(tmp_path):
    path = tmp_path / "records.jsonl"
    told = LINE | {"top8": rows([1, 2, 3, 4], [(7, 0), (7, 3)], 5).to_json()}
    path.write_text(json.dumps(told))
    (record,) = read_records(path, tokenizer_sha256="a")
    assert record.tokens.prompt.tolist() == [1, 2]
    assert record.tokens.end_token_ids == (4,)
    tree = np.array([1, 2, 7, 7, 5], np.uint32), np.array([0, 0, 0, 2, 3], np.uint32)
    assert record.tokens.rows.places(0, *tree).tolist() == [0, 1, 3, 4, -1]
    ids, probabilities = record.tokens.rows.top_k(np.array([4, -1]))
    assert (ids[0].tolist(), probabilities[1].any()) == (list(range(8)), False)
    assert read_records(path)[0].vocab_size == 9
    with pytest.raises(RecordsError, match="line 1: its tokens are of another tokenizer"):
        read_records(path, tokenizer_sha256="b")


def test_branches_that_say_the_same_are_one():
    found = rows([1, 2, 3, 4], [(7, 0), (7, 0), (8, 4), (2, 0), (9, 6)], 8)
    tree = np.array([1, 7, 8, 2, 9], np.uint32), np.array([0, 0, 1, 0, 3], np.uint32)
    assert found.places(0, *tree).tolist() == [0, 3, 5, 1, 7]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rows": 2}, "'rows' of 'top8' must be 3 or more"),
        ({"rows": True}, "'rows' of 'top8' must be 3 or more"),
        ({"rows": 4}, "'tokens' of 'top8' does not hold"),
        ({"ids": packed([[8] * 8] * 3, "<u4"), "rows": 3}, None),
        ({"ids": packed([[9] * 8] * 3, "<u4")}, "'ids' of 'top8' hold 9, of 9 tokens"),
        ({"ids": packed([[1] * 8] * 4, "<u4")}, "'ids' of 'top8' does not hold"),
        ({"ids": "?"}, "'ids' of 'top8' is not base64 of zlib"),
        ({"probabilities": packed([[0.1] * 7 + [0.2]] * 3, "<f4")}, "not from 1 down to 0"),
        ({"probabilities": packed([[1.5] + [0] * 7] * 3, "<f4")}, "not from 1 down to 0"),
        ({"probabilities": packed([[np.nan] * 8] * 3, "<f4")}, "not from 1 down to 0"),
        ({"probabilities": packed([[np.inf] * 8] * 3, "<f4")}, "not from 1 down to 0"),
        (
            {
                "rows": 4,
                "tokens": packed([1], "<u4"),
                "parents": packed([3], "<u4"),
                "ids": packed([[1] * 8] * 4, "<u4"),
                "probabilities": packed([[0] * 8] * 4, "<f4"),
            },
            "rows that do not stand before them",
        ),
    ],
    ids=range(12),
)
def test_unusable_rows_are_refused_with_their_line(tmp_path, changed, why):
    path = tmp_path / "records.jsonl"
    path.write_text("\n" + json.dumps(LINE | {"top8": rows([1, 2, 3, 4]).to_json() | changed}))
    if why is None:
        assert read_records(path)[0].tokens.rows is not None
        return
    with pytest.raises(RecordsError, match=f"line 2: .*{why}"):
        read_records(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt_ids": [9]},
        {"answer_ids": []},
        {"answer_ids": [4, 3]},
        {"vocab_size": 0},
        {"end_token_ids": "x"},
        {"tokenizer_sha256": None, "vocab_size": None},
        {"top8": []},
    ],
    ids=range(7),
)
def test_unusable_tokens_are_refused_with_their_line(tmp_path, changed):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(LINE | changed))
    with pytest.raises(RecordsError, match="line 1: "):
        read_records(path)


def test_rows_of_verifications_are_joined_by_their_paths():
    text = np.array([1, 2, 3], np.uint32)
    logits = np.eye(8, 9, dtype=np.float32)
    seen = [
        SeenStep(
            1, np.array([2, 5, 6], np.uint32), np.array([0, 0, 1], np.uint32), top_k(logits[:3])
        ),
        SeenStep(
            1, np.array([2, 3, 5], np.uint32), np.array([0, 0, 0], np.uint32), top_k(logits[3:6])
        ),
    ]
    found = RecordedRows.of_steps(text, [top_k(logits[6:7])], seen)
    tree = np.array([2, 5, 6, 3, 4], np.uint32), np.array([0, 0, 1, 0, 0], np.uint32)
    places = found.places(1, *tree)
    assert places.tolist() == [1, 2, 3, 4, -1]
    assert found.top_k(places)[0][:, 0].tolist() == [0, 1, 2, 4, 0]
    with pytest.raises(ValueError, match="nothing is known of what follows token 0"):
        RecordedRows.of_steps(text, [], seen)


def test_the_command_writes_records_that_a_replay_takes(bench, tmp_path, coordgen):
    out, folder = tmp_path / "records.jsonl", bench.settings.bundle
    asked = ("--max-new-tokens", 12, "--limit", 1, "--threads", 1, "--methods", "sam")
    coordgen("bench", folder, bench.settings.data, "--records", out, *asked)
    given = ("replay", out, "--tokenizer", folder, "--drafter", "diaa", "--json")
    figures = json.loads(coordgen(*given).out)
    assert figures["records"] == len(PROMPTS)
    assert 0 < figures["known_rows"] < 1
    assert "known rows" in coordgen(*given[:-1]).out
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    for line in lines:
        del line["prompt_ids"]
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "--template is missing" in coordgen("replay", texts, *given[2:], code=2).err


@pytest.mark.parametrize("option", ["--json", "--table"])
def test_what_records_do_not_need_is_refused(tmp_path, coordgen, option):
    given = (
        "bench",
        tmp_path,
        tmp_path / "data",
        "--records",
        tmp_path / "out",
        option,
        tmp_path / "x.json",
    )
    assert "does nothing with --records" in coordgen(*given, code=2).err
    assert "needs DATA" in coordgen("bench", tmp_path, "--records", tmp_path / "x", code=2).err


def test_files_of_spec_bench_lamp_and_android_arena_are_read(tmp_path):
    questions = tmp_path / "question.jsonl"
    questions.write_text('{"question_id": 81, "category": "writing", "turns": ["One?", "Two?"]}\n')
    assert read_prompts(questions) == [Prompt("writing", [{"role": "user", "content": "One?"}])]
    lamp = tmp_path / "dev_questions.json"
    tweets = [{"id": str(n), "text": f"tweet {n}"} for n in range(5)]
    entries = [{"id": "1", "input": "say: a", "profile": tweets}]
    entries.append({"id": "2", "input": "title?", "profile": [{"id": "3", "abstract": "b"}]})
    lamp.write_text(json.dumps(entries))
    first, second = read_prompts(lamp)
    assert first.prompt == (
        '"tweet 0" , and "tweet 1" , and "tweet 2" , and "tweet 3"  are written by a person. '
        "Following the given patterns say: a"
    )
    assert second == Prompt("LaMP", "title?")
    arena = tmp_path / "clock.yaml"
    arena.write_text(
        "type: clock\nmax_step: 15\ntasks:\n  - instruction: Set an alarm to 8.\n"
        "  - instruction: View the time.\n    constrains: Do NOT use the Clock APP.\n"
    )
    assert read_prompts(arena) == [
        Prompt("clock", "Set an alarm to 8."),
        Prompt("clock", "View the time.\nDo NOT use the Clock APP."),
    ]
    for path, text in ((questions, '{"category": "a", "turns": []}'), (lamp, "[1]"), (arena, "a")):
        path.write_text(text)
        with pytest.raises(PromptsError, match=path.name):
            read_prompts(path)
