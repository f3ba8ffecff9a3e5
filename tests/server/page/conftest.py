"""The chat page in headless Chromium: a server, a browser, and what must hold after each test."""

import json
from contextlib import contextmanager
from functools import partial

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("starlette", reason="the extra server is not installed")
import browser as chromium
from browser import found, until
from fake_model import FakeModel
from fake_served import listening
from served import served

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def url(bundle_of, tmp_path_factory):
    if not chromium.is_here():
        pytest.skip("chromium or chromedriver is not here")
    template = tmp_path_factory.mktemp("page") / "own.jinja"
    template.write_text(TEMPLATE)
    options = ("--chat-template", str(template), "--name", "embedded")
    with served(bundle_of("embedded", "fp32"), *options) as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not chromium.is_here():
        pytest.skip("chromium or chromedriver is not here")
    browser = chromium.opened(tmp_path_factory.mktemp("browser"))
    yield browser
    browser.quit()


@pytest.fixture
def visiting(browser):
    """A visit to an address whose page names a model, as `fresh`."""
    return partial(fresh, browser)


@pytest.fixture
def page(visiting, url):
    """The page, fresh and named; afterwards nothing may have been asked elsewhere, or failed."""
    with visiting(url, "embedded") as browser:
        yield browser


class Speaker(FakeModel):
    """Says what a test tells it to, a part a step; every second part is drafted."""

    context, recommended = 1 << 20, {}

    def says(self, *parts):
        sources = ("target", "automaton")
        self.steps = [(it, (sources[at % 2],) * len(it)) for at, it in enumerate(parts)]


@pytest.fixture(scope="module")
def speaker():
    """A model that says what it is told to, with the address of its server as `url`."""
    model = Speaker()
    with listening(model) as model.url:
        yield model


@pytest.fixture
def told(visiting, speaker):
    """The page of the speaker's server."""
    with visiting(speaker.url, "fake") as browser:
        yield browser


@contextmanager
def fresh(browser, url, name):
    """The browser at a page, with nothing of earlier ones."""
    browser.set_window_size(1000, 900)
    browser.get_log("browser")
    browser.get("about:blank")
    of_all = {"origin": url, "storageTypes": "all"}
    browser.execute_cdp_cmd("Storage.clearDataForOrigin", of_all)
    browser.get(url)
    until(browser, lambda: found(browser, "#model").text == name)
    browser.get_log("performance")
    yield browser
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    asked = {one["request"]["url"] for one in sent}
    own = (url, "data:", f"blob:{url}")
    assert all(one.startswith(own) for one in asked if "chrome" not in one), asked
