"""The embedded model says what it said before, whatever drafts, and however it is asked."""

import pytest

pytest.importorskip("llguidance", reason="grammars need llguidance")
from chat_checkpoint import TEMPLATE
from coordgen_rs import Tokenizer, draft_methods, open_session
from coordgen_rs.generation.drafting.warm_up import save_table, warm_up
from recorded_tokens import Subject, by_tasks, differences, held_out, requests, together

FORMS = {
    "embedded": ("fp32", "f32"),
    "embedded-f16": ("fp32", "f16"),
    "embedded-q8": ("fp32", "q8"),
    "embedded-int8": ("int8", "f32"),
    "embedded-int8-q8": ("int8", "q8"),
}
"""Weights, and how keys and values are held."""
METHODS = [method for method in draft_methods() if method.name != "mtp"]  # it has no such head


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "chat.jinja"
    path.write_text(TEMPLATE)
    return path


@pytest.fixture(scope="module")
def subject_of(bundle_of, template):
    def subject(name):
        weights, kv_cache = FORMS[name]
        return Subject(
            name,
            bundle_of("embedded", weights),
            lambda number: requests(*held_out(number), number, chats=True, heat=5.0),
            {"kv_cache": kv_cache, "chat_template": template},
            few=name != "embedded",
        )

    return subject


@pytest.fixture(scope="module")
def embedded(subject_of):
    return subject_of("embedded")


@pytest.mark.parametrize("name", FORMS)
def test_plain_decoding_and_drafts_say_what_is_recorded(subject_of, name):
    subject = subject_of(name)
    subject.check_plain()
    subject.check("auto")
    subject.check("blend", draft="blend", few=True)
    subject.check("together", together, parallel=4)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_says_what_is_recorded(embedded, bundle_of, method):
    model = bundle_of("embedded-draft", "fp32") if method.needs_draft_model else None
    few = method.needs_draft_model
    embedded.check(method.name, few=few, draft=method.name, draft_model=model)


def test_a_draft_model_beside_lookups_says_what_is_recorded(embedded, bundle_of):
    embedded.check("draft model", few=True, draft_model=bundle_of("embedded-draft", "fp32"))


def test_drafts_of_a_look_up_table_say_what_is_recorded(embedded, tmp_path):
    session = open_session(embedded.bundle)
    text = Tokenizer.of(session.bundle).encode(held_out(0)[0])
    table = tmp_path / "table"
    save_table(warm_up(session, [text]), table, session.bundle)
    embedded.check("look-up table", few=True, draft="diaa", lookup_table=table)


def test_a_history_and_kept_prefixes_say_what_is_recorded(embedded, tmp_path):
    embedded.check("history", rounds=2, few=True, history=tmp_path / "history")
    embedded.check("prefixes in memory", rounds=2, few=True, prefix_memory=1 << 24)
    embedded.check("prefixes on disk", few=True, prefix_store=tmp_path / "prefixes")
    embedded.check("prefixes on disk again", few=True, prefix_store=tmp_path / "prefixes")


def test_rejected_side_branches_that_are_fed_again_say_what_is_recorded(embedded):
    embedded.check("canonical", few=True, commit="canonical")


def test_requests_of_asyncio_say_what_is_recorded(embedded):
    embedded.check("tasks", by_tasks, parallel=4)
    embedded.check("tasks in turn", by_tasks, few=True)


def test_what_differs_is_told_by_its_place(embedded):
    said = {"tokens": [4, 5, 6], "text": "abc", "finish_reason": "stop", "seed": None}
    shorter = said | {"tokens": [4, 5], "text": "ab"}
    assert not list(differences(said, said))
    assert list(differences(said, shorter)) == [
        "token 2 is None, recorded is 6",
        "text is 'ab', recorded is 'abc'",
    ]
