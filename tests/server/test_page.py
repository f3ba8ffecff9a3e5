"""The chat page in headless Chromium, driven by selenium, with the embedded model.

`make page-shots` makes pictures, to be looked at.
"""

import json
import re
import urllib.request

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytest.importorskip("jinja2", reason="the extra server is not installed")

from selenium.webdriver.common.keys import Keys

import browser as chromium
from browser import all_of, answered, ask, found, in_page, until

if not chromium.is_here():
    pytest.skip("chromium or chromedriver is not here", allow_module_level=True)

from checkpoints import ROOT
from served import served

TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text()
# What a model says may be anything: the template answers nothing here, so the prompt holds it.
HOSTILE = "<img src=x onerror=alert(1)> <script>alert(2)</script> \x1b[31m **bold**"
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def url(bundle_of, tmp_path_factory):
    template = tmp_path_factory.mktemp("page") / "own.jinja"
    template.write_text(TEMPLATE)
    options = ("--chat-template", str(template), "--name", "embedded")
    with served(bundle_of("embedded", "fp32"), *options) as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = chromium.opened(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, url):
    """The page, fresh and named; afterwards nothing may have been asked elsewhere, or failed."""
    browser.set_window_size(1000, 900)
    browser.get_log("browser")
    browser.get(url)
    until(browser, lambda: found(browser, "#model").text == "embedded")
    yield browser
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = {one["request"]["url"] for one in sent}
    assert all(one.startswith((url, "data:")) for one in asked if "chrome" not in one), asked


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
    assert said == told["choices"][0]["message"]["content"]
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
    assert in_page(page, "document.getElementById('spoken').textContent") == said
    found(page, ".figures button").click()
    until(page, lambda: "the same text" in found(page, ".figures").text)


def test_an_answer_can_be_stopped_and_the_next_one_works(page):
    page.execute_script(
        "new MutationObserver((_, observer) => { if (document.querySelector('.said span')) {"
        " observer.disconnect(); document.getElementById('stop').click(); } })"
        ".observe(document.getElementById('log'), {childList: true, subtree: true})"
    )
    ask(page, TEXT, limit="900", temperature="5", seed="1")  # which seldom ends by itself
    until(page, lambda: in_page(page, "!document.getElementById('send').disabled"))
    assert found(page, ".assistant .figures").text == "stopped"
    assert not found(page, "#stop").is_displayed()
    ask(page, "And?", limit="4")
    until(page, lambda: all_of(page, ".assistant:last-child .legend"))


def test_what_is_said_stays_text(page):
    ask(page, HOSTILE, limit="12")
    answered(page)
    assert in_page(page, "document.querySelectorAll('main img, main script').length") == 0
    shown = in_page(page, "document.querySelector('.user .said').textContent")
    assert shown == HOSTILE.replace("\x1b", "\u241b")


def test_an_error_is_shown_and_the_talk_goes_on(page):
    ask(page, "word " * 3000, limit="4")
    until(page, lambda: "tokens" in found(page, ".error").text if all_of(page, ".error") else False)
    page.get_log("browser")  # the browser itself reports the status 400
    ask(page, "Hello", limit="4")
    answered(page)
    assert len(all_of(page, ".error")) == 1


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
    until(page, lambda: all_of(page, ".error"))
    assert found(page, ".assistant .said").text == "Half"
    assert "broke off" in found(page, ".error").text
    assert "broke off" in in_page(page, "document.getElementById('spoken').textContent")
    assert all_of(page, ".legend") == []
