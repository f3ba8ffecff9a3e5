"""The bench of switching, and what it rests on: equal outputs, and memory that stays flat."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from answers import tokens_of
from checkpoints import CHECKPOINTS, exported
from coordgen_rs import plain
from coordgen_rs._core import BlockCost
from coordgen_rs.bundle.directory import Bundle
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import MemoryBudgetError, OptionError
from coordgen_rs.lab.bench.switching import COLUMNS, bench_switching
from coordgen_rs.lab.bench.workbench import STRATEGIES, NotLosslessError, Settings, Workbench
from coordgen_rs.runtime.cpu import CpuDevice
from coordgen_rs.runtime.machine import resident_bytes
from coordgen_rs.runtime.ort_session import OrtSession, guessed_costs
from mixtures import write_mixture


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """The embedded model in three blocks."""
    out = tmp_path_factory.mktemp("switch") / "bundle"
    export_checkpoint(CHECKPOINTS["embedded"], out, blocks=3, context=512, prefill_rows=64)
    return Bundle.open(out)


@pytest.fixture(scope="module")
def costs(bundle):
    return guessed_costs(bundle.manifest)


def figures(bench, strategy):
    return dict(zip([column.name for column in COLUMNS], bench.row(strategy), strict=True))


def test_every_strategy_is_measured_and_says_the_same(bundle, costs):
    settings = Settings(bundle.path, prompt_len=200, repeats=2, load_delay_s=0.02)
    bench = bench_switching(settings, costs)
    assert list(bench.answers) == list(STRATEGIES)
    assert (
        len({tuple(one.answered.tokens) for given in bench.answers.values() for one in given}) == 1
    )
    for name, given in bench.answers.items():
        row = figures(bench, name)
        assert 0 < row["first_token"].median < 1e3 * max(one.answered.total_s for one in given)
        assert row["hidden"] <= 100
        assert row["loads"] >= 3 * 20, name  # three blocks, each with its delay
        assert row["planned"] > 0
    sync = figures(bench, "sync")
    assert (sync["of_sync"], sync["hidden"]) == (1, 0)


def test_other_tokens_are_an_error(bundle, costs, monkeypatch):
    from coordgen_rs.lab.bench import switching as switch

    real, given = switch._answer, []

    def other(*arguments):
        given.append(real(*arguments))
        if len(given) > 1:
            given[-1].answered.tokens.clear()
        return given[-1]

    monkeypatch.setattr(switch, "_answer", other)
    with pytest.raises(NotLosslessError, match="async gave other tokens"):
        bench_switching(
            Settings(bundle.path, prompt_len=70, strategies=("async",), repeats=1), costs
        )


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"prompt_len": 1}, (OptionError, "prompt_len is 1,")),
        ({"strategies": ("guess",)}, (OptionError, "guess")),
        ({"memory_budget": 1}, (MemoryBudgetError, "budget")),
    ],
)
def test_wrong_options_are_named(bundle, costs, given, error):
    with pytest.raises(error[0], match=error[1]):
        bench_switching(Settings(bundle.path, **({"prompt_len": 70} | given)), costs)


def test_a_budget_of_a_mixture_is_for_graphs_and_experts(tmp_path):
    checkpoint = write_mixture(tmp_path / "checkpoint", "qwen3_moe")
    mixture = exported(checkpoint, tmp_path / "bundle", blocks=2, prefill_rows=32, context=128)
    costs = guessed_costs(mixture.manifest)
    graphs = sum(cost.decode_bytes for cost in costs)
    layers = [region.num_bytes for region in mixture.manifest.experts.layers]
    asked = {"prompt_len": 40, "strategies": ("sync", "just_in_time"), "repeats": 1}
    for held, rest in ((max(layers), 0), (sum(layers), 1 << 20)):
        budget = graphs + held + rest
        bench = bench_switching(Settings(mixture.path, memory_budget=budget, **asked), costs)
        assert bench.memory_budget == graphs + rest
        stats = [one.answered.stats for given in bench.answers.values() for one in given]
        assert all(0 < it.experts.held_bytes <= held for it in stats)
    least = max(cost.decode_bytes for cost in costs) + max(layers)
    with pytest.raises(MemoryBudgetError, match=f"{least} bytes are the least"):
        bench_switching(Settings(mixture.path, memory_budget=least - 1, **asked), costs)


def test_a_guess_counts_the_experts_that_a_row_computes_with(tmp_path):
    checkpoint = write_mixture(tmp_path / "checkpoint", "qwen3_moe")
    manifest = exported(checkpoint, tmp_path / "bundle", blocks=2).manifest
    for block, cost in zip(manifest.blocks, guessed_costs(manifest), strict=True):
        held, experts = manifest.files[block.weights].num_bytes, manifest.experts
        layers = [it for it in experts.layers if it.layer in block.layers]
        read = sum(it.num_bytes for it in layers) * experts.chosen // experts.num
        assert cost.decode_bytes == held
        assert cost.decode_compute_us == round((held + read) / 1e5 * manifest.decode_rows)
        dense = BlockCost.guessed(held, manifest.prefill_rows, manifest.decode_rows)
        assert (cost.decode_load_us, cost.prefill_load_us) == (dense.decode_load_us,) * 2


def test_the_command_takes_strategies_and_a_profile(bundle, tmp_path, coordgen):
    command = ("bench", bundle.path, "--sections", "switching", "--prompt-len", 70, "--repeats", 1)
    profile = tmp_path / "profile.json"
    coordgen("profile", bundle.path, "--repeats", 1, "--out", profile)
    slowed = ("--load-delay", 0.02)  # so slow that somebody waits, however busy the machine is
    chosen = ("--profile", profile, "--strategies", "sync,just_in_time", *slowed, "--json", "-")
    rows = json.loads(coordgen(*command, *chosen).out)["sections"]["switching"]["rows"]
    assert [row["strategy"] for row in rows] == ["sync", "just_in_time"]
    assert rows[0]["of_sync"] == 1


def test_memory_stays_flat_over_requests_in_both_directions(bundle):
    """Every other request begins with all blocks on G1; plans bring the others back or not."""
    session = OrtSession(CpuDevice(bundle, share_graphs=False), preload=False)
    prompt = np.arange(3 * bundle.manifest.prefill_rows) % session.vocab_size
    found = {}
    for number in range(40):
        session.switcher.settle(("just_in_time", "sync", "greedy", "auto")[number % 4])
        session.switcher.only("prefill" if number % 2 else "decode")
        assert len(tokens_of(plain(session, prompt, max_new_tokens=2))) == 2
        if number + 1 in (10, 40):
            session.switcher.only("decode")  # a plan may keep both graphs of a block
            found[number + 1] = resident_bytes()
    assert found[40] <= 1.1 * found[10]


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"task": "one", "prompt": "the meeting is at"}) + "\n")
    return path


@pytest.fixture
def budget(bundle):
    """Bytes of two of the three blocks."""
    return 2 * (bundle.path / "block_00.weights").stat().st_size


@pytest.fixture
def cores():
    """Those that this thread may use, which it may again afterwards."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("threads cannot be pinned here")
    cores = os.sched_getaffinity(0)
    yield cores
    os.sched_setaffinity(0, cores)


def test_loads_of_a_streamed_target_can_be_slowed_and_pinned(
    bundle, prompts, budget, cores, coordgen
):
    options = ("--sections", "methods", "--methods", "sam", "--repeats", 1, "--max-new-tokens", 4)
    slowed = ("--load-delay", 0.001, "--memory-budget", budget, "--pin-loads")
    told = coordgen("bench", bundle.path, prompts, *options, *slowed, "--json", "-")
    assert os.sched_getaffinity(0) == cores - {max(cores)}
    options = json.loads(told.out)["condition"]["options"]
    assert options["load_delay_s"] == 0.001
    assert options["pin_loads"]


def test_loads_are_slowed_at_every_opening(bundle, prompts, budget):
    settings = Settings(bundle.path, prompts, max_new_tokens=4, load_delay_s=0.005)
    for opening in range(2):  # the steps are timed at the first one alone
        streamed = Workbench.open(replace(settings, memory_budget=budget)).session
        assert streamed.switcher.is_streaming, opening
        assert all(cost.decode_load_us >= 5_000 for cost in streamed.switcher.costs), opening
        streamed.close()
