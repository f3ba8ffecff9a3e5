"""Integers of an NPU's cache on disk: they come back bit by bit."""

import pytest

from answers import tokens_of
from coordgen_rs import Stats, Tokenizer, plain
from coordgen_rs.store.prefixes.pool import PrefixPool
from coordgen_rs.store.prefixes.store import PrefixStore, TargetIdentity
from qnn_bundles import PROMPT, cached_sessions, needs_emulator

pytestmark = needs_emulator


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return cached_sessions(tmp_path_factory.mktemp("qnn"))("TinyStories-656K", "8-gen-2")


def test_a_prompt_that_was_stored_gives_the_tokens_of_one_that_is_read(session, tmp_path):
    prompt = Tokenizer.of(session.bundle).encode(PROMPT * 2)
    expected = tokens_of(plain(session, prompt, max_new_tokens=4))
    session.is_exact_after_prefill = True
    store = PrefixStore(tmp_path, TargetIdentity(b"npu"))
    pool = PrefixPool(0, store=store)
    pool.store_up(session)
    session.forget()
    store.flush()
    stats = Stats()
    options = {"max_new_tokens": 4, "reuse_prefix": True, "prefixes": pool, "stats": stats}
    assert tokens_of(plain(session, prompt, **options)) == expected
    assert stats.reused_tokens == store.counts.read_tokens > 0
    store.close()
