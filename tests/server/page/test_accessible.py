"""For those without eyes or mouse: axe-core finds nothing wrong, and keys reach everything."""

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")

from selenium.webdriver.common.keys import Keys

import browser as chromium
from browser import all_of, answered, ask, button, found, in_page, until, violations

MARKDOWN = (
    "# Colours\n\nThe lamp is **green**, *not* red, see [the list](https://example.org/list).\n\n",
    "- one\n- two, with `code`\n  1. inner\n- [x] done\n\n> A quotation.\n\n",
    "| colour | hue |\n|---|---:|\n| green | 120 |\n| blue | 240 |\n\n",
    "```python\nprint('green')\n```\n\n",
    "And an end.",
)
TALL = 2600  # pixels, so that all is on the screen: axe-core judges contrast by what can be seen


def empty(page, speaker):
    """As it is opened."""


def answer(page, speaker):
    speaker.says(*MARKDOWN)
    ask(page, "Which colours?")
    answered(page)
    chromium.show_tree(page)
    in_page(page, "document.activeElement.blur()")


def settings(page, speaker):
    found(page, "#more summary").click()


def shelf(page, speaker):
    answer(page, speaker)
    found(page, "#shelves").click()
    found(page, "#keep").click()
    until(page, lambda: "are kept" in found(page, "#note").text)


def error(page, speaker):
    ask(page, "Which colours?", temperature="101")
    until(page, lambda: all_of(page, ".user .error"))
    page.get_log("browser")  # the browser itself reports the status 400


def edited(page, speaker):
    answer(page, speaker)
    button(page, "Edit").click()


def thinking(page, speaker):
    page.execute_script(
        "const q = put(dialogue, newMessage(null, 'user', 'q'));"
        "const a = put(dialogue, newMessage(q.id, 'assistant', 'The answer.'));"
        "a.thinking = 'First this, then that.';"
        "q.files = [{name: 'lamp.txt', text: 'The lamp is green.'}];"
        "attached = [{name: 'other.txt', text: 'a'}]; show(); showAttached();"
        "for (const it of document.querySelectorAll('#log details')) it.open = true"
    )


def beside(page, speaker):
    answer(page, speaker)
    in_page(page, "document.getElementById('temperature').value = 1")
    button(page, "Another answer").click()
    answered(page)
    button(page, "Side by side").click()


STATES = (empty, answer, settings, shelf, error, edited, thinking, beside)


@pytest.mark.parametrize("width", [360, 1100])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES, ids=lambda it: it.__name__)
def test_axe_core_finds_nothing(told, speaker, state, theme, width):
    state(told, speaker)
    told.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)
    chromium.resize(told, width, TALL)
    try:
        assert violations(told) == []
    finally:
        told.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


CONTROLS = "button, input, select, textarea, summary, a[href], [tabindex='0']"
REACHABLE = (
    "[...document.querySelectorAll(arguments[0])].filter((it) => it.checkVisibility()"
    " && !it.disabled && it.tabIndex >= 0)"
)
FOCUSED = """(() => {
    const it = document.activeElement, box = it.getBoundingClientRect();
    const style = getComputedStyle(it), form = it.closest("form");
    const isRinged = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    const isFramed = it.matches("textarea") && form && getComputedStyle(form).boxShadow !== "none";
    const isAcross = box.right > 0 && box.left < innerWidth;
    const isInside = isAcross && box.bottom > 0 && box.top < innerHeight;
    const isSeen = isInside && Boolean(isRinged || isFramed);
    return { it, told: it.outerHTML.slice(0, 90), isSeen };
})()"""


def reached(page, key, count):
    """What has the focus after each of so many presses of a key."""
    found_ones = []
    for _ in range(count):
        page.switch_to.active_element.send_keys(key)
        focused = in_page(page, FOCUSED)
        if focused["it"].tag_name != "body":
            assert focused["isSeen"], focused["told"]
            found_ones.append(focused["it"])
    return found_ones


@pytest.mark.parametrize(
    "state", [answer, settings, shelf, thinking, beside], ids=lambda it: it.__name__
)
def test_keys_alone_reach_every_control_and_the_focus_is_seen(told, speaker, state):
    state(told, speaker)
    in_page(told, "document.activeElement.blur()")
    wanted = in_page(told, REACHABLE, CONTROLS)
    for key in (Keys.TAB, Keys.SHIFT + Keys.TAB):
        missed = set(wanted) - set(reached(told, key, len(wanted) + 4))
        assert [it.get_attribute("outerHTML") for it in missed] == []


def press(page, *keys):
    page.switch_to.active_element.send_keys(*keys)


def test_a_dialogue_is_led_by_keys_alone(told, speaker):
    speaker.says("One. ", "Two.")
    assert in_page(told, "document.activeElement.id") == "text"
    press(told, "Hello", Keys.ENTER)
    answered(told)
    assert in_page(told, "document.activeElement.id") == "text"
    found(told, ".user .acts button").send_keys(Keys.ENTER)  # Edit
    assert in_page(told, "document.activeElement.matches('.edit textarea')")
    press(told, " again", Keys.ENTER)
    answered(told)
    assert in_page(told, "branchOf(dialogue)[0].content") == "Hello again"
    found(told, "#shelves").send_keys(Keys.SPACE)
    assert in_page(told, "document.activeElement.id") == "search"
    press(told, Keys.ESCAPE)
    assert in_page(told, "document.activeElement.id") == "shelves"
    found(told, "#more summary").send_keys(Keys.ENTER)
    assert found(told, "#temperature").is_displayed()
    found(told, "#more summary").send_keys(Keys.SPACE)
    assert not found(told, "#temperature").is_displayed()
