"""Gemma 4: drafts change nothing, and every way back leads to the same keys and values.

Its layers have caches of different sizes, some of them those of earlier layers, and a second
embedding that stays on disk.
"""

import numpy as np
import pytest

from answers import tokens_of
from coordgen_rs import (
    Bundle,
    Model,
    OrtSession,
    PrefixPool,
    Tokenizer,
    generate,
    make_drafter,
    open_session,
    plain,
)
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import BundleDamagedError, OptionError
from coordgen_rs.runtime.cpu.device import CpuDevice
from gemma4 import CONFIGS, write_gemma4
from lossless import (
    ALL_SOURCES,
    COMMITS,
    Bundles,
    check_adversarial_drafts,
    check_drafts,
    check_ends,
    check_sampled,
    check_streamed,
    prompt_of,
)
from scripted import SCRIPTS

WEIGHTS = ("fp32", "int8", "int4")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gemma4")
    return Bundles(folder, lambda path, family: write_gemma4(path, family, seed=3))


@pytest.fixture(scope="module", params=CONFIGS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def session(bundles, family):
    return open_session(bundles(family))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("commit", COMMITS)
def test_drafts_change_nothing(bundles, family, weights, commit):
    check_drafts(open_session(bundles(family, weights)), commit)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_adversarial_drafts_change_nothing(session, script, commit):
    check_adversarial_drafts(session, script, commit)


def test_an_answer_ends_where_plain_decoding_ends_it(session, monkeypatch):
    check_ends(session, SCRIPTS, monkeypatch)


def test_sampled_answers_and_those_under_a_grammar_are_the_same(session):
    check_sampled(session)


def test_blocks_that_are_streamed_say_the_same(bundles, family):
    check_streamed(bundles(family))


def logits_behind(session, tokens):
    session.prefill(tokens[session.length : -1])
    inputs = session.step_inputs[0]
    inputs.fill_chain(tokens[-1:], session.length)
    return session.step(inputs)[0].copy()


def fresh_logits(session, tokens):
    """Logits behind all of the tokens, of a session that forgets all it held before."""
    session.forget()
    return logits_behind(session, tokens)


@pytest.mark.parametrize("blocks", [1, 3, 6])
def test_wherever_layers_are_cut_the_bits_are_the_same(bundles, family, session, blocks):
    """Also where a layer reads the keys of one in another block."""
    cut = open_session(bundles(family, blocks=blocks))
    for seed in range(2):
        tokens = prompt_of(seed, 200)
        np.testing.assert_array_equal(fresh_logits(cut, tokens), fresh_logits(session, tokens))


@pytest.mark.parametrize("form", ["f16", "q8"])
def test_a_cache_in_fewer_bits_is_exact_too(bundles, family, form):
    session = open_session(bundles(family), kv_cache=form)
    prompt, options = prompt_of(2), {"max_new_tokens": 40, "ignore_eos": True}
    answer = tokens_of(plain(session, prompt, **options))
    for commit in ("canonical", "compact"):
        drafter = make_drafter(session, ALL_SOURCES, commit)
        assert tokens_of(generate(session, prompt, drafter=drafter, **options)) == answer


class Failing:
    """Makes the nth run of a block from now on fail."""

    def __init__(self, session, monkeypatch):
        self._run, self._left = session.device.run, None
        monkeypatch.setattr(session.device, "run", self._counted)

    def within(self, runs):
        self._left = runs

    def _counted(self, *arguments):
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                self._left = None
                raise OSError("gone")
        self._run(*arguments)


def test_random_rewinds_cancels_and_failures_leave_what_a_fresh_session_has(
    bundles, family, session, monkeypatch
):
    other = open_session(bundles(family))
    pool, random = PrefixPool(8 << 20), np.random.default_rng(7)
    failing = Failing(session, monkeypatch)
    drafters = [make_drafter(session, draft) for draft in ("auto", "sam", ALL_SOURCES)]
    prompts = [prompt_of(seed, 120) for seed in range(4)]
    saved, failures = None, 0
    for _ in range(100):
        what = random.integers(5)
        try:
            if what in (0, 1):  # a request, given up half-way, or one of whose runs fails
                prompt = prompts[random.integers(len(prompts))][: random.integers(2, 121)]
                drafter = drafters[random.integers(len(drafters))]
                steps = generate(
                    session, prompt, drafter=drafter, reuse_prefix=True, prefixes=pool,
                    max_new_tokens=int(random.integers(1, 40)), ignore_eos=True,
                )  # fmt: skip
                if what == 1:
                    failing.within(int(random.integers(15)))
                for _ in range(random.integers(1, 20)):
                    next(steps, None)
                steps.close()
            elif what == 2:
                session.rewind(int(random.integers(session.length + 1)))
            elif what == 3:
                saved = session.saved_prefix()
            elif saved is not None:
                session.restore_prefix(saved, int(random.integers(len(saved.token_ids) + 1)))
        except OSError:
            failures += 1
        failing.within(1 << 30)
        tokens = np.append(session.reusable_ids, random.integers(3, 128)).astype(np.uint32)
        tokens = tokens[: session.capacity - 40]
        if len(tokens) <= session.length:
            session.rewind(len(tokens) - 1)
        np.testing.assert_array_equal(logits_behind(session, tokens), fresh_logits(other, tokens))
    assert failures > 5


def test_models_open_and_answer_in_turns(bundles, family):
    with Model.open(bundles(family), prefix_memory=64 << 20) as model:
        prompts = [Tokenizer.of(model._session.bundle).decode(prompt_of(n, 150)) for n in (1, 2)]
        expected = [model.generate(prompt, max_new_tokens=12).text for prompt in prompts]
        again = [model.generate(prompt, max_new_tokens=12) for prompt in prompts * 2]
        assert [answer.text for answer in again] == expected * 2
        assert min(answer.stats.reused_tokens for answer in again) > 0


def test_layers_that_share_keys_and_values_have_none(bundles):
    manifest = Bundle.open(bundles("gemma4")).manifest
    assert [manifest.cache_of(layer).written_by for layer in range(6)] == [0, 1, 2, 1, 1, 2]
    assert manifest.cached_layers == [0, 1, 2]
    assert manifest.cache_heads == [(2, 16), (2, 16), (2, 32)]
    cache = CpuDevice(Bundle.open(bundles("gemma4"))).cache
    slots = manifest.slots
    assert cache.nbytes == slots * 4 * 2 * 2 * (16 + 16 + 32)
    one = Bundle.open(bundles("gemma4_unified")).manifest
    assert one.cached_layers == [0, 1, 2, 3, 4, 5]
    assert one.cache_heads == [(2, 16), (2, 16), (1, 32)] * 2


def test_logits_stay_below_the_cap(session, tmp_path):
    logits = np.abs(fresh_logits(session, prompt_of(1)))
    assert 1 < logits.max() < 20
    capped = write_gemma4(tmp_path / "capped", "gemma4", seed=3, final_logit_softcapping=0.5)
    export_checkpoint(capped, tmp_path / "bundle", weights="fp32", context=1024)
    logits = np.abs(fresh_logits(open_session(tmp_path / "bundle"), prompt_of(1)))
    assert 0.4 < logits.max() <= 0.5


def resident(path):
    """Bytes of a mapped file that are in this process's memory, and of its mappings."""
    found, size = 0, 0
    with open("/proc/self/smaps") as lines:  # noqa: PTH123
        is_of_it = False
        for line in lines:
            fields = line.split()
            if not fields[0].endswith(":"):
                is_of_it = fields[-1] == str(path)
            elif is_of_it and fields[0] in ("Rss:", "Size:"):
                found += int(fields[1]) * 1024 * (fields[0] == "Rss:")
                size += int(fields[1]) * 1024 * (fields[0] == "Size:")
    return found, size


def test_the_embedding_of_layers_stays_on_disk(tmp_path):
    """Opened and used, of a table of 48 MB what was asked for is in memory, and pages beside it."""
    wide = {"hidden_size_per_layer_input": 1344}
    checkpoint = write_gemma4(tmp_path / "checkpoint", "gemma4", **wide)
    export_checkpoint(checkpoint, tmp_path / "bundle", weights="fp32", context=64, prefill_rows=32)
    table = tmp_path / "bundle" / "per_layer.weights"
    assert table.stat().st_size == 1536 * 6 * 1344 * 4
    session = OrtSession(CpuDevice(Bundle.open(tmp_path / "bundle")))
    in_memory, mapped = resident(table)
    assert mapped >= table.stat().st_size
    assert in_memory == 0
    session.prefill(np.array([5, 6, 7], np.uint32))
    in_memory, _ = resident(table)
    assert 0 < in_memory < table.stat().st_size / 8


def test_a_table_that_is_cut_short_is_told(bundles, tmp_path):
    bundle = Bundle.open(bundles("gemma4"))
    table = bundle.file("per_layer.weights")
    content = table.read_bytes()
    try:
        table.write_bytes(content[:-100])
        with pytest.raises(BundleDamagedError, match=r"per_layer.weights is damaged"):
            Bundle.open(bundle.path)
        with pytest.raises(BundleDamagedError, match=r"per_layer.weights cannot be mapped"):
            bundle.per_layer_embedding()
    finally:
        table.write_bytes(content)


def test_a_calibration_text_is_refused_by_name(tmp_path, family):
    checkpoint, text = write_gemma4(tmp_path / "checkpoint", family), tmp_path / "text.txt"
    text.write_text("some words " * 40)
    with pytest.raises(OptionError, match=f"calibration is not known for {family}, whose layers"):
        export_checkpoint(checkpoint, tmp_path / "out", weights="int4", calibration=text)
