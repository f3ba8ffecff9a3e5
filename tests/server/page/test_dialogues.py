"""Dialogues of the chat page that are left, kept, imported and gone on with at odd moments."""

import json

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver.common.keys import Keys

from browser import all_of, answer_without_end, answered, ask, button, found, in_page, until
from checkpoints import ROOT

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text().strip()


def branch(page):
    told = "JSON.stringify(branchOf(dialogue).map((it) => [it.role, it.content]))"
    return json.loads(in_page(page, told))


def idle(page):
    until(page, lambda: in_page(page, "running === null"))


def titles(page):
    return in_page(page, "kept.found('').map((it) => it.title)")


def while_answered(page, script, said="Green"):
    """Ask, and run a script in the page behind the first words of an answer that does not end."""
    answer_without_end(page, said)
    ask(page, TEXT)
    until(page, lambda: in_page(page, "running !== null && running.message.content") == said)
    page.execute_script(script)


def imported(page, tmp_path, *dialogues):
    path = tmp_path / "dialogues.json"
    path.write_text(json.dumps(dialogues))
    found(page, "#imported").send_keys(str(path))
    until(page, lambda: "imported" in found(page, "#note").text)


def message(role, content, parent=None, **others):
    return {"role": role, "content": content, "parent": parent, **others}


def dialogue(messages, current, **others):
    return {"format": 1, "messages": messages, "current": current, **others}


def test_a_dialogue_that_is_left_while_it_is_answered_stays(page):
    while_answered(page, "document.getElementById('anew').click()")
    idle(page)
    assert branch(page) == []
    assert titles(page) == [TEXT[:60]]
    found(page, "#shelves").click()
    found(page, "#dialogues button").click()
    (_, question), (_, answer) = branch(page)
    assert question == TEXT
    assert answer
    assert in_page(page, "branchOf(dialogue)[1].state") == "stopped"


def test_what_is_deleted_while_it_is_answered_does_not_come_back(page):
    found(page, "#shelves").click()
    while_answered(page, "document.getElementById('clear').click()")
    idle(page)
    assert titles(page) == []


def test_a_dialogue_is_deleted_only_once_that_is_confirmed(page):
    ask(page, "First", limit="4", temperature="0")
    answered(page)
    found(page, "#shelves").click()
    for answer, left in (("dismiss", ["First"]), ("accept", [])):
        found(page, "#dialogues li > button:last-child").click()
        asked = page.switch_to.alert
        assert "First" in asked.text
        getattr(asked, answer)()
        until(page, lambda left=left: titles(page) == left)


def test_what_a_reload_loses_is_told_until_it_is_kept(page, url):
    assert not found(page, "#unkept").is_displayed()
    while_answered(page, "", said="")
    assert "reload" in found(page, "#unkept").text
    found(page, "#stop").click()
    idle(page)
    found(page, "#keep-them").click()
    until(page, lambda: not found(page, "#unkept").is_displayed())
    page.get(url)
    until(page, lambda: titles(page) == [TEXT[:60]])
    assert not found(page, "#unkept").is_displayed()


def test_the_open_dialogue_is_not_stopped_by_a_click_on_it(page):
    found(page, "#shelves").click()
    while_answered(
        page,
        "listDialogues(); document.querySelector('#dialogues button').click();"
        "window.isRunning = !running.control.signal.aborted; stopped()",
    )
    assert in_page(page, "isRunning")
    idle(page)


def test_a_question_is_kept_before_it_is_answered(page, url):
    found(page, "#shelves").click()
    found(page, "#keep").click()
    until(page, lambda: "are kept" in found(page, "#note").text)
    while_answered(page, "", said="")
    until(page, lambda: in_page(page, "asked(kept.store('readonly').count())") == 1)
    page.get(url)
    until(page, lambda: in_page(page, "kept.isOn"))
    assert titles(page) == [TEXT[:60]]
    found(page, "#shelves").click()
    found(page, "#dialogues button").click()
    assert branch(page) == [["user", TEXT]]
    assert button(page, "Send").is_displayed()


def test_an_edited_question_can_be_gone_back_to(page):
    ask(page, "First", limit="4", temperature="0")
    answered(page)
    button(page, "Edit").click()
    found(page, ".edit textarea").send_keys(" and more", Keys.ENTER)
    idle(page)
    button(page, "\u2039", ".user .acts").click()
    assert found(page, ".user .said").is_displayed()
    assert found(page, ".user .said").text == "First"


def test_another_answer_that_fails_leaves_the_first_one_with_what_went_wrong(page):
    ask(page, "First", limit="4", temperature="1")
    answered(page)
    before = branch(page)
    page.execute_script("document.getElementById('temperature').value = 500")
    button(page, "Another answer").click()
    idle(page)
    page.get_log("browser")  # the browser itself reports the status 400
    assert branch(page) == before
    assert "temperature" in found(page, ".assistant .error").text


def test_another_answer_at_temperature_0_is_one_to_something_else(page):
    ask(page, "First", limit="4", temperature="0")
    answered(page)
    button(page, "Another answer").click()
    assert "would be the same" in found(page, "#note").text
    page.execute_script("document.getElementById('system').value = 'Be short.'")
    button(page, "Another answer").click()
    idle(page)
    assert in_page(page, "siblingsOf(dialogue, branchOf(dialogue)[1]).length") == 2


def test_the_answer_that_was_chosen_is_kept(page, url):
    found(page, "#shelves").click()
    found(page, "#keep").click()
    until(page, lambda: "are kept" in found(page, "#note").text)
    ask(page, "First", limit="8", temperature="2", seed="1")
    answered(page)
    first = branch(page)
    page.execute_script("document.getElementById('seed').value = 2")
    button(page, "Another answer").click()
    idle(page)
    assert branch(page) != first
    button(page, "\u2039", ".assistant .acts").click()
    assert branch(page) == first
    page.get(url)
    until(page, lambda: titles(page))
    found(page, "#shelves").click()
    found(page, "#dialogues button").click()
    assert branch(page) == first


def test_a_dialogue_brings_its_system_message_and_leaves_it_to_no_other(page, tmp_path):
    found(page, "#shelves").click()
    page.execute_script("document.getElementById('more').open = true")
    found(page, "#system").send_keys("Be short.", Keys.TAB)
    asked = {"a": message("user", "q")}
    imported(page, tmp_path, dialogue(asked, "a", system="Be a pirate."), dialogue(asked, "a"))
    system = "document.getElementById('system').value"
    assert in_page(page, system) == "Be a pirate."
    page.execute_script("opened(kept.found('')[1])")
    page.execute_script("opened([...kept.all.values()].find((it) => !it.system))")
    assert in_page(page, system) == ""
    found(page, "#anew").click()
    assert in_page(page, system) == "Be short."


def test_imported_figures_that_lack_one_are_left_out(page, tmp_path):
    messages = {
        "a": message("user", "q"),
        "b": message("assistant", "x", "a", figures={"tokens": 3}),
    }
    imported(page, tmp_path, dialogue(messages, "b"))
    assert branch(page) == [["user", "q"], ["assistant", "x"]]
    assert "was imported" in found(page, "#note").text


def test_an_imported_dialogue_without_a_place_is_shown_to_its_end(page, tmp_path):
    messages = {"a": message("user", "q"), "b": message("assistant", "x", "a")}
    imported(page, tmp_path, dialogue(messages, None))
    assert branch(page) == [["user", "q"], ["assistant", "x"]]


def test_thousands_of_messages_are_imported(page, tmp_path):
    messages, before = {}, None
    for number in range(3000):
        role = ("user", "assistant")[number % 2]
        messages[str(number)] = message(role, f"said {number}", before)
        before = str(number)
    imported(page, tmp_path, dialogue(messages, before))
    assert len(branch(page)) == 3000


def test_a_title_is_cut_between_characters(page):
    ask(page, "x" * 59 + "\U0001f600 end", limit="4")
    answered(page)
    assert titles(page) == ["x" * 59 + "\U0001f600"]


def test_what_two_tabs_add_to_one_dialogue_is_kept(page):
    page.execute_script(
        "kept.turnOn().then(async () => {"
        "put(dialogue, newMessage(null, 'user', 'mine')); await kept.put(dialogue);"
        "const other = structuredClone({...dialogue, messages: {...dialogue.messages}});"
        "const theirs = newMessage(dialogue.current, 'assistant', 'theirs');"
        "other.messages[theirs.id] = theirs;"
        "await asked(kept.store('readwrite').put(other));"
        "await kept.put(dialogue); window.done_ = Object.values(dialogue.messages).length; });"
    )
    until(page, lambda: in_page(page, "window.done_") == 2)


def test_what_one_tab_says_or_deletes_is_seen_in_another(page, url):
    found(page, "#shelves").click()
    found(page, "#keep").click()
    until(page, lambda: "are kept" in found(page, "#note").text)
    first = page.current_window_handle
    page.switch_to.new_window("tab")
    second = page.current_window_handle
    try:
        page.get(url)
        until(page, lambda: in_page(page, "kept.isOn"))
        ask(page, "Second tab", limit="4", temperature="0")
        answered(page)
        said = branch(page)
        page.switch_to.window(first)
        until(page, lambda: found(page, "#dialogues button").text == "Second tab")
        found(page, "#dialogues button").click()
        until(page, lambda: branch(page) == said)
        ask(page, "Gone on", limit="4", temperature="0")
        idle(page)
        said = branch(page)
        assert len(said) == 4
        page.switch_to.window(second)
        until(page, lambda: branch(page) == said)
        page.execute_script("kept.clear()")
        page.switch_to.window(first)
        until(page, lambda: titles(page) == [])
    finally:
        page.switch_to.window(second)
        page.close()
        page.switch_to.window(first)


def test_a_tab_keeps_nothing_once_another_one_has_turned_that_off(page):
    page.execute_script("kept.turnOn().then(() => { window.done_ = 1; });")
    until(page, lambda: in_page(page, "window.done_"))
    page.execute_script("localStorage.removeItem('coordgen-keeps')")
    ask(page, "First", limit="4", temperature="0")
    answered(page)
    until(page, lambda: not in_page(page, "kept.isOn"))


def test_a_browser_that_keeps_nothing_is_told_and_does_not_look_as_if_it_did(page):
    ask(page, "First", limit="4", temperature="0")
    answered(page)
    page.execute_script(
        "IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceeded'); }"
    )
    found(page, "#shelves").click()
    found(page, "#keep").click()
    until(page, lambda: "does not keep it: full" in found(page, "#note").text)
    assert not found(page, "#keep").is_selected()
    assert in_page(page, "localStorage.length") == 0


def test_a_key_with_other_letters_is_told(page):
    page.execute_script("document.getElementById('key').value = 'schlüssel'")
    ask(page, "First", limit="4", temperature="0")
    until(page, lambda: all_of(page, ".user .error"))
    assert "without accents" in found(page, ".user .error").text


def test_a_continued_answer_heals_the_character_that_the_cut_broke(page):
    page.execute_script(
        "const it = put(dialogue, newMessage(null, 'user', 'q'));"
        "const answer = put(dialogue, newMessage(it.id, 'assistant', '\\u{1f98a}\\ufffd'));"
        "answer.state = 'cut'; tokens.set(answer.id, [1]); bodies.set(answer.id, chatBody([]));"
        "window.answered_ = answered; window.bodyBehind = async () => ({ max_tokens: 4 });"
        "window.textOf = async () => '\\u{1f98a}\\u{1f98a}\\u{1f98a}';"
        "const event = { choices: [{ index: 0, text: '\\u{1f98a}', finish_reason: null }] };"
        "window.fetch = async () => new Response("
        "`data: ${JSON.stringify(event)}\\n\\ndata: [DONE]\\n\\n`);"
        "goOn(viewOf(answer));"
    )
    idle(page)
    assert branch(page)[1][1] == "\U0001f98a" * 3


def test_definitions_of_links_stay_and_repeat_nothing(told, speaker):
    said = "Green [1].\n\n[1]: https://example.com/colours\n\nAnd red is one.\n\nThat is all."
    speaker.says(*(said[at : at + 4] for at in range(0, len(said), 4)))
    ask(told, "Write.", limit="1000")
    answered(told)
    text = in_page(told, "document.querySelector('.assistant .said').innerText")
    assert " ".join(text.split()) == " ".join(said.split())


def test_text_from_right_to_left_begins_on_the_right(told, speaker):
    speaker.says("שלום עולם.")
    ask(told, "Write.", limit="1000")
    answered(told)
    style = "getComputedStyle(document.querySelector('.assistant .said p')).unicodeBidi"
    assert in_page(told, style) == "plaintext"
