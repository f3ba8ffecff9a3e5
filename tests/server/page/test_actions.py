"""What one does on the chat page all day, by script: every action, with the embedded model."""

import json
import shutil
import urllib.request

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from browser import all_of, answered, ask, button, found, in_page, until
from checkpoints import ROOT
from coordgen_rs.cli.commands.chat import dialogue_file
from served import served

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text().strip()
DRAWN = {"temperature": "1.2", "limit": "12"}


def branch(page):
    """The messages that are shown."""
    told = "JSON.stringify(branchOf(dialogue).map((it) => [it.role, it.content]))"
    return json.loads(in_page(page, told))


def idle(page):
    until(page, lambda: in_page(page, "running === null"))


def click(page, text):
    button(page, text).click()


def test_a_message_is_edited_and_asked_again_and_both_stay(page):
    ask(page, TEXT, limit="8")
    answered(page)
    first = branch(page)
    click(page, "Edit")
    area = found(page, ".edit textarea")
    assert area.get_attribute("value") == TEXT
    area.send_keys(Keys.ESCAPE)
    assert all_of(page, ".edit") == []
    click(page, "Edit")
    in_page(page, "document.querySelector('.edit textarea').value = 'What is green?'")
    click(page, "Ask")
    answered(page)
    assert branch(page)[0] == ["user", "What is green?"]
    assert found(page, ".user .count").text == "2 of 2"
    found(page, ".user [aria-label='The message before']").click()
    assert branch(page) == first


def test_other_answers_of_a_question_stand_side_by_side_and_one_is_gone_on_with(page):
    ask(page, TEXT, limit="12", temperature="0")
    answered(page)
    click(page, "Another answer")
    assert "would be the same" in found(page, "#note").text
    for name, value in DRAWN.items():
        in_page(page, "document.getElementById(arguments[0]).value = arguments[1]", name, value)
    first = branch(page)
    click(page, "Another answer")
    answered(page)
    second = branch(page)
    assert found(page, ".assistant .count").text == "2 of 2"
    click(page, "Side by side")
    columns = all_of(page, ".beside .assistant")
    assert len(columns) == 2
    for column, (_, (_, said)) in zip(columns, (first, second), strict=True):
        text = column.find_element("css selector", ".said").get_attribute("textContent")
        assert text.split() == said.split()
    columns[0].find_elements("css selector", "button")[-2].click()
    assert branch(page) == first
    ask(page, "And?", limit="4", temperature="0")
    answered(page)
    assert branch(page)[:2] == first


def test_an_answer_goes_on_where_the_limit_cut_it_with_the_same_tokens(page):
    ask(page, TEXT, limit="40", temperature="0")
    answered(page)
    (_, whole) = branch(page)
    found(page, "#anew").click()
    ask(page, TEXT, limit="6")
    answered(page)
    for _ in range(8):
        if not any(it.text == "Continue" for it in all_of(page, ".acts button")):
            break
        click(page, "Continue")
        idle(page)
    (_, cut) = branch(page)
    assert cut[1].startswith(whole[1][:40])
    assert whole[1].startswith(cut[1]) or cut[1].startswith(whole[1])
    assert len(cut[1]) >= min(len(whole[1]), 40)


def test_code_and_answers_are_copied_as_they_were_written(page):
    said = "A *word*:\n\n```go\nfunc f() {\n\treturn\n}\n```\n"
    page.execute_script(
        "const it = put(dialogue, newMessage(null, 'user', 'q'));"
        "put(dialogue, newMessage(it.id, 'assistant', arguments[0])); show();"
        "window.last = []; navigator.clipboard.writeText = async (text) => { last.push(text); };",
        said,
    )
    found(page, ".code-head button").click()
    button(page, "Copy", ".assistant > .acts").click()
    until(page, lambda: in_page(page, "last.length") == 2)
    assert in_page(page, "last") == ["func f() {\n\treturn\n}", said]


def test_dialogues_are_kept_only_if_one_turns_it_on_and_one_click_clears(page, url):
    ask(page, "First question", limit="4")
    answered(page)
    page.get(url)
    until(page, lambda: found(page, "#model").text)
    found(page, "#shelves").click()
    assert all_of(page, "#dialogues li") == []
    found(page, "#keep").click()
    until(page, lambda: "are kept" in found(page, "#note").text)
    ask(page, "Second question", limit="4")
    answered(page)
    before = branch(page)
    found(page, "#anew").click()
    ask(page, "Third one", limit="4")
    answered(page)
    page.get(url)
    until(page, lambda: found(page, "#model").text)
    found(page, "#shelves").click()
    until(page, lambda: len(all_of(page, "#dialogues li")) == 2)
    found(page, "#search").send_keys("second")
    assert len(all_of(page, "#dialogues li")) == 1
    found(page, "#dialogues button").click()
    assert branch(page) == before
    assert all_of(page, ".assistant .said span, .assistant .said p")
    found(page, "#search").clear()
    found(page, "#search").send_keys(Keys.BACKSPACE)
    found(page, "#clear").click()
    until(page, lambda: "are gone" in found(page, "#note").text)
    assert all_of(page, "#dialogues li") == []
    click(page, "Undo")
    until(page, lambda: len(all_of(page, "#dialogues li")) == 2)
    found(page, "#clear").click()
    until(page, lambda: "are gone" in found(page, "#note").text)
    found(page, "#keep").click()
    until(page, lambda: "Nothing is kept" in found(page, "#note").text)
    page.get(url)
    until(page, lambda: found(page, "#model").text)
    assert in_page(page, "localStorage.length") == 0


def test_what_is_exported_is_what_the_terminal_loads_and_the_other_way_round(page, tmp_path):
    (tmp_path / "lamp.txt").write_text("The lamp is green.\n")
    found(page, "#file").send_keys(str(tmp_path / "lamp.txt"))
    until(page, lambda: found(page, "#files").text.startswith("lamp.txt"))
    ask(page, "What is green?", limit="6")
    answered(page)
    exported = tmp_path / "exported.json"
    exported.write_text(in_page(page, "JSON.stringify(dialogue)"))
    messages = dialogue_file.load(exported)
    assert messages[0]["content"] == "What is green?\n\nlamp.txt:\n```\nThe lamp is green.\n```"
    assert messages[1]["content"] == branch(page)[1][1]
    own = tmp_path / "own.json"
    dialogue_file.save(own, [{"role": "system", "content": "Be short."}, *messages], "m")
    found(page, "#shelves").click()
    found(page, "#imported").send_keys(str(own))
    until(page, lambda: "imported" in found(page, "#note").text)
    assert branch(page) == [[it["role"], it["content"]] for it in messages]
    assert found(page, "#system").get_attribute("value") == "Be short."


ONE = {"parent": None, "role": "user", "content": ""}
DAMAGED = {
    "no JSON": "{",
    "no dialogue in it": [],
    "no dialogue of format 1": {"format": 7},
    "circle": {"a": ONE | {"parent": "a"}},
    "unknown": {"a": ONE | {"parent": "b"}},
    "a role": {"a": ONE | {"role": "tool"}},
    "turns": {"a": ONE | {"role": "assistant"}},
    "no text": {"a": ONE | {"content": 3}},
}


@pytest.mark.parametrize("told", DAMAGED)
def test_a_damaged_file_of_dialogues_is_refused_with_what_is_wrong(page, tmp_path, told):
    path, content = tmp_path / "damaged.json", DAMAGED[told]
    if isinstance(content, dict) and "a" in content:
        content = {"format": 1, "messages": content}
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    found(page, "#imported").send_keys(str(path))
    until(page, lambda: "cannot be imported" in found(page, "#note").text)
    assert told in found(page, "#note").text


def test_files_that_are_no_text_are_refused_by_name(page, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\xff")
    (tmp_path / "nul.bin").write_bytes(b"a\0b")
    for name, told in (("picture.png", "no text in UTF-8"), ("nul.bin", "is no text")):
        found(page, "#file").send_keys(str(tmp_path / name))
        until(page, lambda name=name: name in found(page, "#note").text)
        assert told in found(page, "#note").text
    assert all_of(page, "#files li") == []


def test_dropped_files_go_with_the_message(page):
    page.execute_script(
        "const data = new DataTransfer(); data.items.add(new File(['print(1)'], 'a.py'));"
        "dispatchEvent(new DragEvent('drop', {dataTransfer: data, cancelable: true}));"
    )
    until(page, lambda: found(page, "#files").text.startswith("a.py"))
    ask(page, "What is it?", limit="4")
    answered(page)
    assert found(page, ".user .file summary").text == "a.py, 8 characters"


def test_recommended_sampling_is_offered_and_temperature_0_explained(page):
    page.execute_script("document.getElementById('more').open = true")
    assert "tend to repeat themselves" in found(page, "#advice").text
    found(page, "#take").click()
    assert found(page, "#temperature").get_attribute("value") == "0.7"
    page.execute_script(
        "models[0].recommended = {temperature: 0.6, top_k: 20, top_p: 0.95};"
        "wereChosen = false; showModel();"
    )
    assert found(page, "#top_k").get_attribute("value") == "20"
    assert "As the model's makers recommend" in found(page, "#advice").text
    assert in_page(page, "JSON.stringify(sampling())") == (
        '{"max_tokens":1024,"temperature":0.6,"top_k":20,"top_p":0.95}'
    )


def test_thinking_is_folded_away_and_no_part_of_the_answer(page):
    events = [
        {"reasoning_content": "First <b>this</b>. "},
        {"reasoning_content": "Then that."},
        {"content": "The answer."},
    ]
    sent = "".join(
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': it, 'finish_reason': None}]})}\n\n"
        for it in events
    )
    page.execute_script(
        "const [sent] = arguments; window.fetch = async () => new Response(sent);",
        f"{sent}data: [DONE]\n\n",
    )
    ask(page, "Think")
    idle(page)
    assert branch(page)[1] == ["assistant", "The answer."]
    assert not found(page, ".thought").is_displayed()
    found(page, ".thinking summary").click()
    assert found(page, ".thought").text == "First <b>this</b>. Then that."


def test_on_a_phone_enter_breaks_the_line_and_the_button_sends(page):
    touch = {"enabled": True, "maxTouchPoints": 1}
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", touch)
    media = [{"name": "pointer", "value": "coarse"}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    page.execute_script("window.matchMedia = () => ({matches: true})")
    found(page, "#text").send_keys("one", Keys.ENTER, "two")
    assert found(page, "#text").get_attribute("value") == "one\ntwo"
    found(page, "#send").click()
    idle(page)
    assert branch(page)[0] == ["user", "one\ntwo"]
    page.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_server_with_keys_says_that_it_wants_one(browser, bundle_of, tmp_path, url):
    keys = tmp_path / "keys"
    keys.write_text("alice secret-key-1\n")
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    options = ("--chat-template", str(template), "--api-key-file", str(keys))
    with served(bundle_of("embedded", "fp32"), *options) as (_, guarded):
        browser.get(guarded)
        until(browser, lambda: found(browser, "#key-told").text)
        assert found(browser, "#key-told").text == "This server wants an API key: type it here."
        assert in_page(browser, "document.activeElement.id") == "key"
        ask(browser, "Hello", limit="4")
        told = "This server wants an API key: type it in Settings."
        until(browser, lambda: found(browser, ".user .error").text == told)
        found(browser, "#key").send_keys("wrong", Keys.TAB)
        until(browser, lambda: "does not know" in found(browser, "#key-told").text)
        found(browser, "#key").clear()
        found(browser, "#key").send_keys("secret-key-1", Keys.TAB)
        until(browser, lambda: found(browser, "#model").text)
        button(browser, "Send again").click()
        idle(browser)
        assert len(branch(browser)) == 2
    browser.get_log("browser")


def test_of_several_models_the_chosen_one_answers(visiting, bundle_of, tmp_path):
    paths = [tmp_path / name for name in ("first", "second")]
    for path, weights in zip(paths, ("fp32", "int8"), strict=True):
        shutil.copytree(bundle_of("embedded", weights), path)
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    with (
        served(paths[0], str(paths[1]), "--chat-template", str(template)) as (_, several),
        visiting(several, "first") as browser,
    ):
        browser.execute_script("document.getElementById('more').open = true")
        names = "[...document.getElementById('which').options].map((it) => it.text)"
        listed = ["first", "second (unloaded)"]
        until(browser, lambda: in_page(browser, names) == listed)
        Select(found(browser, "#which")).select_by_value("second")
        assert found(browser, "#model").text == "second"
        ask(browser, TEXT, limit="4")
        answered(browser)
        assert in_page(browser, "dialogue.model") == "second"
        with urllib.request.urlopen(f"{several}/v1/models") as told:
            states = {one["id"]: one["state"] for one in json.load(told)["data"]}
        assert states["second"] == "ready"
