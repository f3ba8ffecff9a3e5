"""How answers and the page's own parts are shown: nothing is covered, lost or forgotten."""

import re

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.webdriver import ActionChains

from browser import all_of, answered, ask, found, in_page, resize


def said(page, speaker, text):
    """Have an answer say a text, a word a step, every second one drafted; what is shown of it."""
    speaker.says(*re.findall(r"\s*\w+|\W", text))
    ask(page, "Write.", limit="1000")
    answered(page)
    return in_page(page, "document.querySelector('.assistant .said').innerText")


COVERED = """(() => {
    const rows = (it, edge) => [...it.getClientRects()].map(({ left, right, top, bottom }) =>
        ({ left, right, top, bottom: bottom + edge }));
    const runs = [...document.querySelectorAll(".assistant .said [data-source]")];
    const boxes = runs.filter((it) => it.classList.contains("drafted")).flatMap((it) =>
        rows(it, parseFloat(getComputedStyle(it).boxShadow.split("px")[1])));
    const across = (a, b) => a.left < b.right && b.left < a.right;
    const into = (a, b) => a.top > b.top + 1 && a.top < b.bottom;
    const covers = (a, b) => across(a, b) && (into(a, b) || into(b, a));
    return runs.filter((it) => rows(it, 0).some((row) => boxes.some((box) => covers(box, row))))
        .map((it) => it.textContent);
})()"""
"""Texts that the box of a drafted word in the row above or below reaches into."""


def test_no_box_of_a_drafted_word_covers_another_row(told, speaker):
    row = "    return is_prime(n_max) and snake_case_name\n"
    heading = "## a_b " + "of_some_long_words " * 20
    said(told, speaker, f"{heading}\n\nis_prime\n\n```python\n{row * 6}```\n\n{'some_words ' * 60}")
    assert len(all_of(told, ".assistant .said .drafted")) > 50
    assert in_page(told, COVERED) == []


def shut_by_its_button(page):
    found(page, "#shut").click()
    assert in_page(page, "document.activeElement.id") == "shelves"


def shut_by_a_tap_beside_it(page):
    ActionChains(page).move_to_element_with_offset(found(page, "body"), 170, 0).click().perform()


@pytest.mark.parametrize("shut", [shut_by_its_button, shut_by_a_tap_beside_it])
def test_on_a_phone_the_list_of_dialogues_can_be_closed(told, shut):
    resize(told, 360, 640)
    try:
        found(told, "#shelves").click()
        found(told, "#search").click()
        assert found(told, "#shelf").is_displayed()
        shut(told)
        assert not found(told, "#shelf").is_displayed()
    finally:
        told.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_on_a_wide_screen_the_list_stays_while_one_writes(told):
    found(told, "#shelves").click()
    found(told, "#text").click()
    assert found(told, "#shelf").is_displayed()


def test_a_task_stands_beside_its_box(told, speaker):
    text = said(told, speaker, "- [x] one\n- [ ] two\n\nand\n\n- [x] far\n\n- [ ] apart\n")
    rows = [" ".join(row.split()) for row in text.split("\n") if row.strip()]
    assert rows == ["\u2611 one", "\u2610 two", "and", "\u2611 far", "\u2610 apart"]


FORMULAS = (
    r"\[ E=mc^2 \]",
    r"It is \( a_1 * b \) or \(\{ x \\ y_2 * z \}\) here.",
    "\\[\na_{1} * b_{2}\n- c_{3} * d\n\\]",
    "As follows:\n$$\na_1 * b\n+ c * d_2\n$$\nand so on.",
    r"x\[ y_1 \] z",
    r"- of \[ a_1 \\ b_1 \]",
)


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_shown_as_it_was_written(told, speaker, formula):
    shown = said(told, speaker, f"{formula}\n\nThat is *all*.")
    wanted = f"{formula.removeprefix('- ')}\n\nThat is all."
    assert shown.split() == wanted.split()


@pytest.mark.parametrize(
    ("escaped", "shown"),
    [(r"\[no\](link) and \*", "[no](link) and *"), (r"one \[ alone", "one [ alone")],
)
def test_other_escapes_of_markdown_are_none_to_see(told, speaker, escaped, shown):
    assert said(told, speaker, escaped) == shown


def test_dark_or_light_is_the_same_behind_a_reload(told, speaker):
    theme = "document.documentElement.dataset.theme"
    for _ in range(2):
        found(told, "#theme").click()
        chosen = in_page(told, theme)
        told.get(speaker.url)
        assert in_page(told, theme) == chosen


def test_one_token_is_no_plural(told, speaker):
    speaker.says("Green", ".")
    ask(told, "Write.", limit="1000")
    answered(told)
    title = "document.querySelectorAll('.step')[1].title"
    in_page(told, "document.querySelectorAll('.step')[1].focus()")
    shown = " ".join([in_page(told, title), found(told, "body").text])
    assert not re.search(r"\b1 (drafted )?(tokens|steps|rows|characters)\b", shown)
