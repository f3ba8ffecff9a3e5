"""Answers on the chat page: tints, steps and their trees, figures, errors, both themes.

`make page-shots` makes pictures, to be looked at.
"""

import json
import re
import urllib.request

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver.common.keys import Keys

import browser as chromium
from browser import all_of, answer_without_end, answered, ask, button, found, in_page, until
from checkpoints import ROOT

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text()


def test_an_answer_comes_tinted_and_its_counts_are_those_of_the_api(page, url):
    ask(page, TEXT, limit="60")
    answered(page)
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 60}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        told = json.load(response)
    said = in_page(page, "document.querySelector('.assistant .said').textContent")
    assert said.strip() == told["choices"][0]["message"]["content"].strip()
    counts = {
        item.get_attribute("data-source"): int(item.get_attribute("data-count"))
        for item in all_of(page, ".legend li")
    }
    assert sum(counts.values()) == told["usage"]["completion_tokens"]
    assert len(counts) > 1
    strip = in_page(page, "document.querySelectorAll('.step i').length")
    assert strip == told["usage"]["completion_tokens"]
    drafted = all_of(page, ".said .drafted")
    assert drafted
    assert drafted[0].get_attribute("title").startswith(tuple(counts))
    spoken = in_page(page, "document.getElementById('spoken').textContent")
    assert spoken.strip() == said.strip()
    button(page, "Compare with plain decoding").click()
    until(page, lambda: "the same text" in found(page, ".assistant .figures").text)
    assert "As measured in one answer" in found(page, "#saved").text


def test_an_answer_can_be_stopped_and_the_next_one_works(page):
    answer_without_end(page, "Green")
    ask(page, TEXT)
    until(page, lambda: found(page, ".assistant .said").text == "Green")
    found(page, "#stop").click()
    until(page, lambda: in_page(page, "!document.getElementById('send').disabled"))
    assert found(page, ".assistant .figures").text == "stopped"
    assert button(page, "Continue").is_displayed()
    assert not found(page, "#stop").is_displayed()
    ask(page, "And?", limit="4")
    until(page, lambda: all_of(page, ".assistant:last-child .legend"))


def test_a_message_is_not_lost_after_an_error_and_can_be_sent_again(page):
    ask(page, TEXT, limit="4", temperature="101")
    until(page, lambda: all_of(page, ".user .error"))
    assert "temperature" in found(page, ".user .error").text
    page.get_log("browser")  # the browser itself reports the status 400
    assert in_page(page, "document.querySelector('.user .said').textContent") == TEXT.strip()
    in_page(page, "document.getElementById('temperature').value = 0")
    button(page, "Send again").click()
    answered(page)
    assert all_of(page, ".error") == [found(page, "#key-told")]
    ask(page, "word " * 3000, limit="4")
    until(page, lambda: all_of(page, ".user .error"))
    page.get_log("browser")
    button(page, "Edit").click()
    until(page, lambda: all_of(page, ".edit textarea"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_fits_into_360_pixels_in_both_themes(page, theme):
    ask(page, TEXT, limit="60")
    answered(page)
    before = in_page(page, "getComputedStyle(document.body).backgroundColor")
    found(page, "#theme").click()
    assert in_page(page, "getComputedStyle(document.body).backgroundColor") != before
    page.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    chromium.resize(page, 360, 740)
    try:
        chromium.show_tree(page)
        assert in_page(page, "innerWidth") == 360
        assert in_page(page, "document.documentElement.scrollWidth") <= 360
        page.execute_script("document.getElementById('log').scrollTop = 1e6")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_step_shows_its_tree_by_mouse_and_by_keys(page, url):
    ask(page, TEXT, limit="60")
    answered(page)
    number = chromium.show_tree(page)
    picture = found(page, ".tree svg")
    label = picture.get_attribute("aria-label")
    assert label == found(page, ".tree figcaption").get_attribute("textContent")
    assert label.startswith(f"Step {number}: ")
    step = all_of(page, ".step")[number - 1]
    accepted, drafted = map(
        int, re.search(r"(\d+) of (\d+) drafted", step.accessible_name).groups()
    )
    assert drafted == len(all_of(page, ".tree .accepted rect, .tree .rejected rect"))
    assert accepted <= len(all_of(page, ".tree .accepted rect"))
    assert len(all_of(page, ".tree .own rect")) <= 1
    assert len(all_of(page, ".step[tabindex='0']")) == 1
    step.send_keys(Keys.HOME)
    assert found(page, ".tree figcaption").text.startswith("Step 1: ")
    all_of(page, ".step")[0].send_keys(Keys.ARROW_RIGHT)
    assert found(page, ".tree figcaption").text.startswith("Step 2: ")
    all_of(page, ".step")[0].click()
    assert found(page, ".tree figcaption").text.startswith("Step 1: ")


def test_an_answer_that_breaks_off_is_not_shown_as_whole(page):
    event = {"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": None}]}
    event["coordgen"] = {"spans": [[0, 4, "target"]], "token_spans": [[0, 1, "target"]]}
    page.execute_script(
        "const bytes = new TextEncoder().encode(arguments[0]);"
        "window.fetch = async () => new Response(new ReadableStream({start(control) {"
        " control.enqueue(bytes); control.close(); }}))",
        f": waiting\n\ndata: {json.dumps(event)}\n\n",
    )
    ask(page, "Hello")
    until(page, lambda: all_of(page, ".assistant .error"))
    assert found(page, ".assistant .said").text == "Half"
    assert "broke off" in found(page, ".assistant .error").text
    assert "broke off" in in_page(page, "document.getElementById('spoken').textContent")
    assert all_of(page, ".legend") == []
