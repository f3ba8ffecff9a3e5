"""`Model.chat` and `Dialogue`, with the embedded model: turns, stops, and what is reused."""

import pytest

from checkpoints import ROOT
from coordgen_rs import Dialogue, Model, Tokenizer
from coordgen_rs.errors import ChatTemplateError, OptionError, PromptTooLongError

TEXT, OTHER = ((ROOT / "models" / "prompts" / f"{task}.txt").read_text() for task in ("rag", "ui"))
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{% if tools %}{{ tools|tojson }}{% endif %}{% if note %}{{ note }}{% endif %}"
)


@pytest.fixture(scope="module")
def model(bundle_of, tmp_path_factory):
    template = tmp_path_factory.mktemp("chat") / "own.jinja"
    template.write_text(TEMPLATE)
    with Model.open(bundle_of("embedded", "fp32"), chat_template=template) as model:
        yield model


def user(content):
    return {"role": "user", "content": content}


def test_a_chat_is_the_rendered_text_without_further_special_tokens(model, session_of):
    tokenizer = Tokenizer.of(session_of("embedded", "fp32").bundle)
    text = model.chat_prompt([user(TEXT)])
    assert text.endswith(f"{TEXT}\n")
    assert model.chat_prompt([user([{"type": "text", "text": TEXT}])]) == text
    answer = model.chat([user(TEXT)], max_new_tokens=16)
    prompt_len = len(tokenizer.encode(text, special_tokens=False))
    assert answer.stats.prompt_tokens == prompt_len
    pieces = list(model.stream_chat([user(TEXT)], max_new_tokens=16))
    assert "".join(map(str, pieces)) == answer.text
    tools = [{"type": "function", "function": {"name": "weather"}}]
    assert '"weather"' in model.chat_prompt([user(TEXT)], tools=tools)
    assert model.chat_prompt([user(TEXT)], template_variables={"note": "!"}).endswith("!")


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.1, "seed": 4, "min_p": 0.02, "repetition_penalty": 1.2}]
)
def test_turns_edits_stops_and_other_requests_change_no_token(model, options):
    options = options | {"max_new_tokens": 20}

    def asked(messages, **more):
        answer = model.chat(messages, **options, **more)
        for alone in ({"reuse_prefix": False}, {"drafts": False}):
            assert model.chat(messages, **options, **more, **alone).token_ids == answer.token_ids
        return answer

    messages = [user(TEXT)]
    first = asked(messages)
    messages += [{"role": "assistant", "content": first.text}, user("And what else?")]
    second = asked(messages)
    stop = second.text[2:5]
    assert asked(messages, stop=stop).text == second.text.partition(stop)[0]
    model.generate(OTHER, max_new_tokens=3)
    assert asked(messages).token_ids == second.token_ids
    edited = [user(TEXT.replace("a", "e", 1)), *messages[1:]]
    asked(edited)
    assert model.chat(messages, **options).token_ids == second.token_ids


def test_the_next_turn_computes_only_what_is_new(model):
    dialogue = Dialogue(model, max_new_tokens=12)
    with dialogue.ask(TEXT) as stream:
        first = "".join(map(str, stream))
    with dialogue.ask("And?") as stream:
        list(stream)
    stats = dialogue.answer.stats
    assert stats.reused_tokens > 0.8 * stats.prompt_tokens
    assert [message["role"] for message in dialogue.messages] == ["user", "assistant"] * 2
    assert dialogue.messages[1]["content"] == first
    dialogue.reset()
    assert (dialogue.messages, dialogue.answer) == ([], None)


def test_a_stopped_answer_stays_as_far_as_it_was_given(model):
    dialogue = Dialogue(model, "Be short.", max_new_tokens=60, ignore_eos=True)
    with dialogue.ask(TEXT) as stream:
        said = str(next(stream)) + str(next(stream))
    assert dialogue.messages[-1] == {"role": "assistant", "content": said}
    assert dialogue.answer.finish_reason is None
    with dialogue.ask("Go on.") as stream:
        list(stream)
    expected = model.chat(
        dialogue.messages[:4], max_new_tokens=60, ignore_eos=True, reuse_prefix=False
    )
    assert dialogue.answer.token_ids == expected.token_ids


def test_a_question_without_an_answer_is_taken_back(model):
    dialogue = Dialogue(model, max_new_tokens=4)
    with dialogue.ask(TEXT):
        pass  # stopped before the first piece
    assert dialogue.messages == []
    with pytest.raises(PromptTooLongError), dialogue.ask("word " * 5000) as stream:
        list(stream)
    assert dialogue.messages == []
    with pytest.raises(ZeroDivisionError), dialogue.ask(TEXT) as stream:
        raise ZeroDivisionError(said := str(next(stream)))
    assert dialogue.messages[-1]["content"] == said


def test_an_answer_that_was_cut_goes_on_as_a_higher_limit_had_it(model):
    expected = model.chat([user(TEXT)], max_new_tokens=40, ignore_eos=True)
    dialogue = Dialogue(model, max_new_tokens=9, ignore_eos=True)
    with dialogue.ask(TEXT) as stream:
        list(stream)
    token_ids = list(dialogue.answer.token_ids)
    for limit in (1, 20, 10):
        dialogue.options["max_new_tokens"] = limit
        with dialogue.go_on() as stream:
            list(stream)
        token_ids += dialogue.answer.token_ids
    assert token_ids == list(expected.token_ids)
    assert dialogue.messages == [user(TEXT), {"role": "assistant", "content": expected.text}]


def test_a_character_that_the_limit_cut_appears_where_it_is_completed(model):
    token_ids = model.tokenizer.encode("a\N{OCTOPUS}b", special_tokens=False).tolist()
    dialogue = Dialogue(model, max_new_tokens=1)
    told = []
    for token in token_ids:  # of which all but the first and the last are of one character
        dialogue.options["logit_bias"] = {token: 100.0}
        with dialogue.go_on() if told else dialogue.ask(TEXT) as stream:
            told.append("".join(stream))
    assert len(token_ids) > 3
    assert [text for text in told if text] == ["a", "\N{OCTOPUS}", "b"]
    assert dialogue.messages[-1]["content"] == "a\N{OCTOPUS}b"


def test_an_answer_goes_on_after_it_was_stopped_and_ends_at_a_stop_string_without_it(model):
    whole = model.chat([user(TEXT)], max_new_tokens=40, ignore_eos=True).text
    stop = whole[-12:]
    dialogue = Dialogue(model, max_new_tokens=40, ignore_eos=True, stop=[stop])
    with dialogue.ask(TEXT) as stream:
        next(stream)
    with dialogue.go_on() as stream:
        list(stream)
    assert dialogue.messages[-1]["content"] == whole[: whole.index(stop)]


@pytest.mark.parametrize("what", ["nothing", "complete", "loaded", "taken back", "another system"])
def test_what_is_complete_or_unknown_cannot_be_gone_on_with(model, what):
    dialogue = Dialogue(model, max_new_tokens=80 if what == "complete" else 4)
    if what != "nothing":
        with dialogue.ask(TEXT) as stream:
            list(stream)
    if what == "loaded":
        dialogue.load(dialogue.messages)
    if what == "taken back":
        assert dialogue.take_back() == TEXT
        assert dialogue.take_back() is None
    if what == "another system":
        dialogue.system = "Be short."
    before = dialogue.messages
    with pytest.raises(OptionError, match="go on with"), dialogue.go_on():
        pass
    assert dialogue.messages == before


def test_a_loaded_dialogue_goes_on_as_if_it_had_been_said_here(model):
    said = [{"role": "system", "content": "Be short."}, user(TEXT)]
    dialogue = Dialogue(model, max_new_tokens=6)
    dialogue.load(said)
    assert dialogue.system == "Be short."
    with dialogue.ask("And?") as stream:  # in place of what was never answered
        list(stream)
    assert dialogue.messages[:2] == [said[0], user("And?")]
    dialogue.system = None
    assert dialogue.messages == dialogue.turns
    for wrong in ([said[0], said[0]], [user("a"), user("b")], [{"role": "tool", "content": ""}]):
        with pytest.raises(OptionError, match=r"messages\[[01]\]\.role is"):
            dialogue.load(wrong)


def test_a_bundle_without_a_template_says_what_to_do(bundle_of):
    with Model.open(bundle_of("embedded", "fp32"), draft="plain") as model:
        with pytest.raises(ChatTemplateError, match="chat_template of Model"):
            model.chat([user("x")])
        assert model.generate("x", max_new_tokens=1).token_ids
