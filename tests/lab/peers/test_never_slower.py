"""The choice of widths against oracles, and what the command prints."""

import json
import time

import numpy as np
import pytest

import never_slower
from coordgen_rs.errors import OptionError
from coordgen_rs.generation.drafting.drafter import make_drafter
from coordgen_rs.generation.loop import generate
from coordgen_rs.generation.step import Step
from coordgen_rs.runtime.session import StepCost
from support import oracles
from support.oracles import (
    PromptFigures,
    Recorded,
    Replay,
    TaskFigures,
    measure,
    random_prompts,
)

VOCAB_SIZE = 40
WIDTHS = (1, 4, 8)


def replay(costs):
    by_width = {w: StepCost(cost, 0.001) for w, cost in zip(WIDTHS, costs, strict=True)}
    return Replay(by_width, VOCAB_SIZE, 900, ["automaton"])


def records(random, repeating):
    """Answers that copy their prompt, or that are random."""
    prompts = [random.integers(VOCAB_SIZE, size=60).astype(np.uint32) for _ in range(20)]
    answers = [prompt[10:50] if repeating else random.permutation(40) for prompt in prompts]
    return [Recorded(p, a.astype(np.uint32)) for p, a in zip(prompts, answers, strict=True)]


@pytest.mark.parametrize("repeating", [True, False])
@pytest.mark.parametrize("costs", [(1, 1.2, 1.5), (1, 2.1, 3.8), (1, 4, 8)])
def test_the_choice_is_never_slower_than_plain_and_never_beats_the_adaptive_oracle(
    costs, repeating
):
    replayed = replay(costs)
    of_task = records(np.random.default_rng(3), repeating)
    fixed = [replayed.fixed(width, of_task) for width in WIDTHS]
    chosen, adaptive = replayed.chosen(of_task), replayed.adaptive(of_task)
    assert chosen <= fixed[0] / 0.97
    assert adaptive <= min(*fixed, chosen) * (1 + 1e-9)
    if repeating and costs[-1] < 2:
        assert chosen < fixed[0] / 1.5


def test_plain_costs_a_narrow_step_a_token():
    (record,) = records(np.random.default_rng(0), repeating=True)[:1]
    expected = sum(1 + 0.001 * (59 + place) for place in range(40))
    assert replay((1, 2, 3)).fixed(1, [record]) == pytest.approx(expected)


def test_every_task_gets_its_figures(session_of):
    session = session_of("embedded", "fp32")
    prompts = {"circles": [np.resize(np.arange(9, dtype=np.uint32), 40)]}
    prompts["random"] = random_prompts(session, 1, length=30)
    found = measure(session, prompts, ["automaton"], max_new_tokens=8, repeats=1)
    assert [figures.task for figures in found] == ["circles", "random"]
    for figures in found:
        assert figures.fixed >= 1
        assert figures.adaptive >= max(figures.fixed, figures.modelled) * (1 - 1e-9)
        assert figures.gap == pytest.approx(1 - figures.modelled / figures.fixed)


def test_a_measured_speedup_is_tokens_over_time_the_first_step_included(session_of, monkeypatch):
    """Steps take a second each on a clock that only they move, so seconds are steps."""
    session, seconds = session_of("embedded", "fp32"), [0.0]
    prompt = np.resize(np.arange(9, dtype=np.uint32), 60)
    step = type(session).step

    def slow_step(self, inputs):
        seconds[0] += 1
        return step(self, inputs)

    monkeypatch.setattr(type(session), "step", slow_step)
    monkeypatch.setattr(time, "perf_counter", lambda: seconds[0])
    monkeypatch.setattr(session, "step_costs", [StepCost(1.0, 0.0)] * len(session.step_inputs))
    (found,) = measure(session, {"circles": [prompt]}, ["automaton"], max_new_tokens=24, repeats=1)
    before = seconds[0]
    drafter = make_drafter(session, ["automaton"])
    tokens = [
        token
        for step in generate(session, prompt, max_new_tokens=24, drafter=drafter)
        for token in step.token_ids
    ]
    num_steps = seconds[0] - before
    assert 1 < num_steps < len(tokens) / 1.5
    assert found.plain_tokens_per_s == 1.0
    assert found.measured == pytest.approx(len(tokens) / num_steps)
    (of_prompt,) = found.prompts
    assert of_prompt.speedup == pytest.approx(found.measured)
    assert (of_prompt.prompt_len, of_prompt.answer_len) == (60, len(tokens))


def test_a_speedup_is_a_median_over_pairs_in_which_each_kind_begins_in_turns(
    session_of, monkeypatch
):
    """Each run has the seconds that stand next in a list; a replay has none."""
    took, ran = iter([2.0, 1.0, 5.0, 2.0, 9.0, 3.0]), []

    def run(kind):
        def answer(session, prompt, *, stats=None, **options):
            if stats is None:
                yield from generate(session, prompt, **options)
            else:
                ran.append((kind, options["reuse_prefix"]))
                stats.decode_s = next(took)
                yield Step([1], 0)

        return answer

    for kind in ("plain", "generate"):
        monkeypatch.setattr(oracles, kind, run(kind))
    session = session_of("embedded", "fp32")
    monkeypatch.setattr(session, "step_costs", [StepCost(1.0, 0.0)] * len(session.step_inputs))
    prompt = np.arange(9, dtype=np.uint32)
    (found,) = measure(session, {"once": [prompt]}, ["automaton"], repeats=3)
    pair = ["plain", "generate"]
    assert ran == [(kind, True) for kind in [*pair, *pair[::-1], *pair]]
    assert found.prompts == [PromptFigures(1, 9, 1, [2.0, 0.4, 3.0])]
    assert found.prompts[0].speedup == 2.0
    assert found.measured == pytest.approx(2.0 / 3.0)


def test_prompts_on_which_drafting_is_slower_are_counted_and_named(capsys):
    prompts = [PromptFigures(n, 50, 8, [of]) for n, of in enumerate((1.5, 0.9, 2.0), 1)]
    slower = TaskFigures("rag", prompts, 9.0, 1.2, 1.3, 1.1, 4, 1.4)
    random = TaskFigures("random", [PromptFigures(1, 50, 8, [0.98])], 9.0, 1.0, 1.0, 1.0, 1, 1.0)
    where = {"weights": "Q4_0", "threads": 1}
    never_slower.show([where | figures.to_json() for figures in (slower, random)])
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if line.startswith("| Q4_0")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [(line[2], line[3], line[4], line[-1]) for line in cells[2:4]] == [
        ("all tasks", "3", "x0.90", "1"),
        ("random", "1", "x0.98", "0"),
    ]
    assert cells[-1] == ["Q4_0", "1", "rag", "2", "50", "8", "x0.90", "x0.90..x0.90"]


def test_what_cannot_be_measured_is_refused(session_of, monkeypatch):
    session = session_of("embedded", "fp32")
    with pytest.raises(OptionError, match="repeats"):
        measure(session, {}, ["automaton"], repeats=0)
    monkeypatch.setattr(session, "step_costs", None)
    with pytest.raises(OptionError, match="step costs"):
        measure(session, {}, ["automaton"])


def test_the_command_prints_every_weight_and_thread(bundle_of, data, capsys):
    command = [bundle_of("embedded", "fp32"), "--json", "--data", data, "--limit", 1]
    command += ["--repeats", 1, "--max-new-tokens", 4, "--threads", 1, 2]
    never_slower.main([*map(str, command)])
    rows = json.loads(capsys.readouterr().out)
    assert {(row["weights"], row["threads"]) for row in rows} == {("fp32", 1), ("fp32", 2)}
    assert {"random"} < {row["task"] for row in rows}


def test_what_is_no_bundle_is_one_line(data, tmp_path, capsys):
    asked = [str(tmp_path / "absent"), "--threads", "1", "--data", str(data)]
    assert never_slower.main(asked) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "absent does not exist" in line
