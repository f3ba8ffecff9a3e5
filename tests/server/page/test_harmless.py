"""What models, prompts, files and imports hold is shown as text: it runs nothing, asks nobody.

The list in `payloads.json` is that of OWASP's and PortSwigger's cheat sheets, with what Markdown
adds to it.
"""

import json
from pathlib import Path

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.common.exceptions import NoAlertPresentException

from browser import all_of, answered, ask, found, in_page, until

PAYLOADS = json.loads(Path(__file__).with_name("payloads.json").read_text())
READ = ("`", "&", "\n", "<http")
"""What Markdown reads also between angle brackets."""

LITERAL = [
    it
    for it in PAYLOADS
    if it.startswith("<") and it.isprintable() and not any(mark in it for mark in READ)
]
ELEMENTS = (
    "a,article,b,blockquote,button,circle,code,del,details,div,em,figcaption,figure,h2,h3,h4,h5,h6,hr,i,"
    "li,ol,p,path,pre,rect,span,strong,summary,svg,table,tbody,td,th,thead,tr,u,ul"
)
"""All that a dialogue is made of."""


WRONG_ELEMENTS = """[...document.querySelectorAll("#log *, #dialogues *, #files *, #note *")]
    .filter((it) => !it.matches(arguments[0])
        || [...it.attributes].some(({ name }) => name.startsWith("on") || name === "src")
        || it.hasAttribute("href") && !/^(https?|mailto):$/.test(it.protocol))
    .map((it) => it.outerHTML)"""


@pytest.fixture(autouse=True)
def harmless(told):
    """Nothing ran, whatever a test has shown; the page that it uses checks requests and errors."""
    yield
    with pytest.raises(NoAlertPresentException):
        _ = told.switch_to.alert
    assert in_page(told, "window.__xss") is None
    assert in_page(told, WRONG_ELEMENTS, ELEMENTS) == []
    assert in_page(told, "Object.keys(Object.prototype).length") == 0
    assert in_page(told, "[...document.querySelectorAll('base, meta[http-equiv]')].length") == 0


def shown(page, role="assistant"):
    return in_page(page, f"[...document.querySelectorAll('.{role} .said')].at(-1).textContent")


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_what_a_model_says_is_shown(told, speaker, step):
    said = "\n\n".join(it for it in PAYLOADS)
    speaker.says(*(said[at : at + step * 40] for at in range(0, len(said), step * 40)))
    ask(told, "Say it")
    answered(told)
    text = shown(told)
    assert [it for it in LITERAL if it not in text] == []
    for link in all_of(told, "#log .said a"):
        told.execute_script(
            "arguments[0].dispatchEvent(new MouseEvent('mouseover', {bubbles: true}))", link
        )


GROWN = """(() => {
    const [payload] = arguments;
    dialogue = newDialogue();
    views.clear();
    const q = put(dialogue, newMessage(null, "user", payload));
    const a = put(dialogue, newMessage(q.id, "assistant", "")), view = new Answer(a);
    views.set(a.id, view);
    a.thinking = payload;
    show();
    for (const it of payload) {
        view.add(it, ["automaton"], by);
        view.draw();
    }
    document.getElementById("log").append(new Answer(a).whole().article);
    return [...document.querySelectorAll("#log .said")].map((it) => it.textContent);
})()"""


def test_a_payload_is_shown_as_it_comes_and_as_it_is_kept(told):
    for payload in PAYLOADS:
        asked, grown, anew = in_page(told, GROWN, payload)
        assert asked == in_page(told, "shown(arguments[0])", payload)
        assert grown == anew
        assert payload not in LITERAL or payload in grown
        assert in_page(told, WRONG_ELEMENTS, ELEMENTS) == [], payload


def test_prompts_and_names_of_files_are_shown(told, speaker):
    speaker.says("Yes.")
    told.execute_script(
        """const data = new DataTransfer();
        for (const it of arguments[0]) data.items.add(new File([it], it.replaceAll("/", ":")));
        dispatchEvent(new DragEvent("drop", { dataTransfer: data, cancelable: true }));""",
        [it for it in PAYLOADS if "\x00" not in it],
    )
    until(told, lambda: len(all_of(told, "#files li")) > 100)
    ask(told, "\n".join(PAYLOADS))
    answered(told)
    assert shown(told, "user") == in_page(told, "shown(arguments[0])", "\n".join(PAYLOADS).strip())
    assert len(all_of(told, ".user .file")) > 100
    found(told, "#shelves").click()
    assert PAYLOADS[0] in found(told, "#dialogues").text


def one(payload):
    """A dialogue with the payload wherever a text may be."""
    message = {"thinking": payload, "created": payload, "error": payload, "state": "done"}
    file = {"name": payload, "text": payload}
    figures = {"tokens": 1, "steps": 1, "perSecond": 1, "prompt": 1, "reused": 0}
    figures["sources"] = {payload: 1, "__proto__": 1, "constructor": 2}
    question = {"parent": None, "role": "user", "content": payload, "files": [file]} | message
    answer = {"parent": "__proto__", "role": "assistant", "content": payload} | message
    answer |= {"spans": [[0, 3, payload]], "figures": figures}
    return {
        "format": 1,
        "id": payload,
        "title": payload,
        "created": payload,
        "changed": payload,
        "model": payload,
        "system": payload,
        "messages": {"__proto__": question, "constructor": answer},
        "current": "constructor",
        "__proto__": {"polluted": payload},
        "constructor": {"prototype": {"polluted": payload}},
    }


def imported(page, tmp_path, content):
    path = tmp_path / "dialogues.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    page.execute_script("tell('')")
    found(page, "#imported").send_keys(str(path))
    until(page, lambda: found(page, "#note").text)
    return found(page, "#note").text


def test_imported_dialogues_are_shown(told, tmp_path):
    assert "were imported" in imported(told, tmp_path, [one(it) for it in PAYLOADS])
    found(told, "#shelves").click()
    lines = all_of(told, "#dialogues li")
    assert len(lines) == len(PAYLOADS)
    for number in range(len(PAYLOADS)):
        told.execute_script(
            "document.querySelectorAll('#dialogues li > button:first-child')[arguments[0]].click()",
            number,
        )
        assert len(all_of(told, "#log article")) == 2
    found(told, "#keep").click()
    until(told, lambda: "are kept" in found(told, "#note").text)
    told.refresh()
    until(told, lambda: found(told, "#model").text)
    found(told, "#shelves").click()
    until(told, lambda: len(all_of(told, "#dialogues li")) == len(PAYLOADS))
    assert in_page(told, "({}).polluted") is None


WRONG = [None, 1, True, [], {}, [[]], {"a": 1}, "", 1e308, "x" * 100_000]


@pytest.mark.parametrize("name", [*one(""), "parent", "role", "content", "files", "spans", "error"])
def test_a_wrong_type_is_refused_or_taken_for_nothing(told, tmp_path, name):
    for value in WRONG:
        dialogue = one("x")
        if name in dialogue:
            dialogue[name] = value
        else:
            dialogue["messages"]["constructor"][name] = value
        note = imported(told, tmp_path, dialogue)
        assert "imported" in note
        assert "undefined" not in note
        assert "is not a function" not in note
        assert "not iterable" not in note


def test_names_of_models_are_shown(told):
    told.execute_script(
        """const recommended = (temperature) => ({ temperature });
        const data = arguments[0].map((id) => ({ id, state: id, recommended: recommended(id) }));
        window.fetch = async () => new Response(JSON.stringify({ data }));""",
        PAYLOADS,
    )
    in_page(told, "named()")
    until(told, lambda: not in_page(told, "document.getElementById('which-model').hidden"))
    assert in_page(told, "document.getElementById('which').options.length") == len(PAYLOADS)
    assert found(told, "#model").text == PAYLOADS[0]
    assert in_page(told, "document.querySelectorAll('#which *:not(option), #advice *').length") == 0


DEEP = {
    "quotes": ">" * 20_000 + " x",
    "brackets": "[" * 20_000,
    "links": "[" * 3000 + "x" + "](a)" * 3000,
    "stars": "*a " * 5000,
    "both": "**a_" * 4000,
    "ticks": "`" * 9999 + "a" + "`" * 9998,
    "lists": "\n".join("  " * depth + "- x" for depth in range(300)),
    "one line of lists": "- " * 5000 + "x",
    "elements": "<b>" * 5000,
    "comments": "<!--" * 5000,
    "references": "&#" * 10_000,
    "columns": "|" * 5000 + "\n" + "|-" * 5000 + "|",
    "spaces": "a" + " " * 20_000 + "b",
    "addresses": "https://" * 3000,
    "mail": "a" * 10_000 + "@" + "a." * 5000,
}


@pytest.mark.parametrize("name", DEEP)
def test_what_nests_or_repeats_without_end_does_not_stop_the_page(told, speaker, name):
    said = DEEP[name]
    speaker.says(*(said[at : at + 2000] for at in range(0, len(said), 2000)))
    ask(told, "Say it")
    answered(told)
    deepest = in_page(
        told,
        """[...document.querySelectorAll('#log .said *')].reduce((most, it) => {
            let depth = 0;
            for (; it; it = it.parentElement) depth++;
            return Math.max(most, depth);
        }, 0)""",
    )
    assert deepest < 100
