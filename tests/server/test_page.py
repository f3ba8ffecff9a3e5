"""The chat page in headless Chromium, driven by selenium, with the embedded model.

With PAGE_SHOTS=folder, pictures are kept there.
"""

import json
import os
import shutil
import urllib.request

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytest.importorskip("jinja2", reason="the extra server is not installed")
if not (shutil.which("chromium") and shutil.which("chromedriver")):
    pytest.skip("chromium or chromedriver is not here", allow_module_level=True)

from selenium import webdriver
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

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
    options = webdriver.ChromeOptions()
    for option in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{option}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
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
    shot(browser)
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = {one["request"]["url"] for one in sent}
    assert all(one.startswith((url, "data:")) for one in asked if "chrome" not in one), asked


def shot(browser, kind="wide"):
    """Keep a picture, where someone wants to look."""
    folder = os.environ.get("PAGE_SHOTS")
    if folder:
        name = os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split(" ")[0]
        browser.save_screenshot(f"{folder}/{name}-{kind}.png")


def until(browser, condition):
    return WebDriverWait(browser, 60, poll_frequency=0.05).until(lambda _: condition())


def found(browser, selector):
    return browser.find_element("css selector", selector)


def all_of(browser, selector):
    return browser.find_elements("css selector", selector)


def ask(browser, text, **settings):
    for name, value in settings.items():
        browser.execute_script(
            "document.getElementById(arguments[0]).value = arguments[1]", name, value
        )
    browser.execute_script("document.getElementById('text').value = arguments[0]", text)
    found(browser, "#text").send_keys(Keys.ENTER)


def answered(browser):
    until(browser, lambda: all_of(browser, ".assistant:last-child .legend"))


def in_page(browser, script):
    return browser.execute_script(f"return {script}")


def test_an_answer_comes_tinted_and_its_counts_are_those_of_the_api(page, url):
    ask(page, TEXT, limit="60")
    answered(page)
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 60}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
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
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        assert in_page(page, "innerWidth") == 360
        assert in_page(page, "document.documentElement.scrollWidth") <= 360
        page.execute_script("document.getElementById('log').scrollTop = 1e6")
        shot(page, "narrow")
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
