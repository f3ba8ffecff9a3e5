"""Headless Chromium with the chat page, driven by selenium: Debian's chromium-driver."""

import json
import shutil
from importlib.resources import files

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait


def is_here():
    """Whether the browser and its driver are installed."""
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


def opened(profile):
    """A browser with a profile of its own, in a new folder; `quit` ends it."""
    options = webdriver.ChromeOptions()
    for option in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "disable-gpu"):
        options.add_argument(f"--{option}")
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    browser.set_script_timeout(600)  # a busy machine draws a page slowly
    return browser


NOT_YET = (NoSuchElementException, StaleElementReferenceException)


def until(browser, condition, seconds=600):
    """Wait for what the page is about to do, also where it draws anew what is looked at."""
    wait = WebDriverWait(browser, seconds, poll_frequency=0.05, ignored_exceptions=NOT_YET)
    return wait.until(lambda _: condition())


def found(browser, selector):
    return browser.find_element("css selector", selector)


def all_of(browser, selector):
    return browser.find_elements("css selector", selector)


def button(browser, text, within=""):
    """The last button that says so, once there is one; `within` is a selector."""
    last = """[...document.querySelectorAll(arguments[0])].findLast(
        (it) => it.checkVisibility() && it.innerText.trim() === arguments[1])"""
    return until(browser, lambda: in_page(browser, last, f"{within} button", text))


def in_page(browser, script, *arguments):
    """The value of an expression in the page."""
    return browser.execute_script(f"return {script}", *arguments)


def ask(browser, text, **settings):
    """Send a message, with settings by the ids of their fields."""
    for name, value in settings.items():
        in_page(browser, "document.getElementById(arguments[0]).value = arguments[1]", name, value)
    in_page(browser, "document.getElementById('text').value = arguments[0]", text)
    found(browser, "#text").send_keys(Keys.ENTER)


def answer_without_end(browser, said):
    """Let the next message be answered by these words, and no end, whatever time that takes."""
    choice = {"index": 0, "delta": {"content": said}, "finish_reason": None, "token_ids": [5]}
    browser.execute_script(
        """const [sent] = arguments, asks = window.fetch;
        window.fetch = async (path, options) => {
            if (!path.endsWith("completions")) return asks(path, options);
            window.fetch = asks;
            return new Response(new ReadableStream({ start(told) {
                if (sent) told.enqueue(new TextEncoder().encode(sent));
                options.signal.onabort = () => told.error(options.signal.reason);
            } }));
        };""",
        said and f"data: {json.dumps({'choices': [choice]})}\n\n",
    )


def answered(browser, seconds=600):
    """Wait for the figures behind the last answer."""
    until(browser, lambda: in_page(browser, "running === null"), seconds)
    until(browser, lambda: all_of(browser, ".assistant:last-child .legend"), seconds)


def resize(browser, width, height):
    """Show the page as on a screen of that size, also below a window's least width."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def show_tree(browser):
    """Draw the widest tree of the last answer; its step."""
    return in_page(
        browser,
        """(() => {
        const steps = [...document.querySelectorAll('.assistant:last-child .step')];
        const drafted = (step) => Number(/of (\\d+) drafted/.exec(step.title)?.[1] ?? 0);
        const widest = steps.reduce((a, b) => drafted(b) > drafted(a) ? b : a);
        widest.focus();
        document.getElementById('log').scrollTop = 1e6;
        return steps.indexOf(widest) + 1;
    })()""",
    )


def violations(browser):
    """What axe-core finds wrong: each rule, with the elements that break it and why."""
    if not in_page(browser, "'axe' in window"):
        browser.execute_script(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    told = browser.execute_async_script(
        """const done = arguments[0], values = ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"];
        const asked = axe.run(document, { runOnly: { type: "tag", values } });
        asked.then(done, (error) => done(`${error}`));"""
    )
    assert isinstance(told, dict), told
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in told["violations"]
        for node in rule["nodes"]
    ]
