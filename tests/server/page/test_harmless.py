"""What models, prompts, files and imports hold is shown as text: it runs nothing, asks nobody.

The list is that of OWASP's and PortSwigger's cheat sheets, with what Markdown adds to it.
"""

import json

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")

from selenium.common.exceptions import NoAlertPresentException

from browser import all_of, answered, ask, found, in_page, until

RUN = "window.__xss=1"
ELSEWHERE = "https://elsewhere.invalid"
PAYLOADS = [
    f"<script>{RUN}</script>",
    f"<ScRiPt>{RUN}</sCrIpT>",
    f"<script src={ELSEWHERE}/a.js></script>",
    f"<scr<script>ipt>{RUN}</scr</script>ipt>",
    f"<script\x20type='text/javascript'>{RUN};</script>",
    f"<script/xss src='{ELSEWHERE}/a.js'></script>",
    f"<<script>{RUN}//<</script>",
    f"</textarea><script>{RUN}</script>",
    f"</style><script>{RUN}</script>",
    f"</title><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<img src=x onerror='{RUN}'//",
    f'<img src="x:x" onerror="{RUN}">',
    f"<img/src=`x`onerror={RUN}>",
    f"<img src={ELSEWHERE}/a.png>",
    f"<img srcset='{ELSEWHERE}/a.png 2x'>",
    f"<body onload={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<select autofocus onfocus={RUN}>",
    f"<textarea autofocus onfocus={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<video src=x onerror={RUN}></video>",
    f"<video poster={ELSEWHERE}/a.png></video>",
    f"<audio src={ELSEWHERE}/a.mp3 autoplay onerror={RUN}></audio>",
    f"<marquee onstart={RUN}>x</marquee>",
    f"<div onpointerrawupdate={RUN} style='position:fixed;inset:0'>x</div>",
    f"<x onclick={RUN}>x</x>",
    f"<a href='javascript:{RUN}' autofocus onfocus={RUN}>x</a>",
    f"<button popovertarget=x onclick={RUN}>x</button>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    "<svg><script>&#119;indow.__xss=1</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{RUN}'><text>x</text></a></svg>",
    f"<svg><use href='{ELSEWHERE}/a.svg#x'></use></svg>",
    f"<svg><foreignObject><iframe onload={RUN}></iframe></foreignObject></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}>",
    f"<math href='javascript:{RUN}'>x</math>",
    f"<form><math><mtext></form><form><mglyph><style></math><img src onerror={RUN}>",
    f"<iframe src='javascript:{RUN}'></iframe>",
    "<iframe srcdoc='<script>parent.__xss=1</script>'></iframe>",
    f"<iframe src='{ELSEWHERE}'></iframe>",
    f"<object data='javascript:{RUN}'></object>",
    f"<object data='{ELSEWHERE}/a.swf'></object>",
    f"<embed src='{ELSEWHERE}/a.svg'>",
    f"<meta http-equiv=refresh content='0;url=javascript:{RUN}'>",
    f"<meta http-equiv=refresh content='0;url={ELSEWHERE}'>",
    f"<base href='{ELSEWHERE}/'>",
    f"<link rel=stylesheet href={ELSEWHERE}/a.css>",
    f"<link rel=prefetch href={ELSEWHERE}/>",
    f"<style>@import '{ELSEWHERE}/a.css';</style>",
    f"<style>*{{background:url({ELSEWHERE}/a.png)}}</style>",
    f"<div style='background:url({ELSEWHERE}/a.png)'>x</div>",
    f"<template><script>{RUN}</script></template>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<form action='javascript:{RUN}'><input type=submit></form>",
    f"<isindex type=image src=1 onerror={RUN}>",
    f"<table background='{ELSEWHERE}/a.png'><td>x</td></table>",
    f"<!--<img src='--><img src=x onerror={RUN}>'>-->",
    f"<!--[if gte IE 4]><script>{RUN}</script><![endif]-->",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f"<?xml version='1.0'?><script>{RUN}</script>",
    f"'\"><img src=x onerror={RUN}>",
    "'';!--\"<XSS>=&{()}",
    f"[x](javascript:{RUN})",
    f"[x](JaVaScRiPt:{RUN})",
    f"[x](java\tscript:{RUN})",
    f"[x](<java\nscript:{RUN}>)",
    f"[x](&#106;avascript:{RUN})",
    f"[x](&#x6A;&#x61;vascript&colon;{RUN})",
    f"[x](javascript&#58;{RUN})",
    f"[x]( javascript:{RUN})",
    f"[x](\x01javascript:{RUN})",
    f"[x](vbscript:{RUN})",
    f"[x](data:text/html,<script>{RUN}</script>)",
    "[x](data:text/html;base64,PHNjcmlwdD53aW5kb3cuX194c3M9MTwvc2NyaXB0Pg==)",
    "[x](file:///etc/passwd)",
    f"[x](blob:{ELSEWHERE}/1)",
    "[x](//elsewhere.invalid)",
    "[x](../../v1/models)",
    f'[x]({ELSEWHERE} "a\\" onmouseover={RUN} b")',
    f"[x]({ELSEWHERE} 'a' onmouseover={RUN} 'b')",
    f'[x](<{ELSEWHERE}" onmouseover={RUN} x=">)',
    f"[<img src=x onerror={RUN}>]({ELSEWHERE})",
    f"[x][1]\n\n[1]: javascript:{RUN}",
    f"![x]({ELSEWHERE}/a.png)",
    f"![x](javascript:{RUN})",
    f"![x'\" onerror={RUN}]({ELSEWHERE}/a.png)",
    f"[![x]({ELSEWHERE}/a.png)](javascript:{RUN})",
    f"![x][1]\n\n[1]: {ELSEWHERE}/a.png",
    f"<javascript:{RUN}>",
    f"<javascript&colon;{RUN}>",
    f'<{ELSEWHERE}/"onmouseover={RUN}>',
    f"{ELSEWHERE}/'onmouseover='{RUN}",
    f"```<img src=x onerror={RUN}>\n<script>{RUN}</script>\n```",
    f'``` "><script>{RUN}</script>\nx\n```',
    f"`<img src=x onerror={RUN}>`",
    f"# <img src=x onerror={RUN}>",
    f"- <svg onload={RUN}>\n  - <script>{RUN}</script>",
    f"> <iframe src=javascript:{RUN}>",
    f"| <img src=x onerror={RUN}> | b |\n|---|---|\n| <script>{RUN}</script> | [x](vbscript:x) |",
    f'| a |\n|:-"onload={RUN}:|\n| b |',
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"&#60;script&#62;{RUN}&#60;/script&#62;",
    f"\\<script>{RUN}\\</script>",
    f"\u202e<script>{RUN}</script>\u202c",
    f"<scr\x00ipt>{RUN}</scr\x00ipt>",
    f"\ufeff<script>{RUN}</script>",
    f"\uff1cscript\uff1e{RUN}\uff1c/script\uff1e",
    f"<a\x0chref=javascript:{RUN}>x</a>",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"${{{RUN}}}",
    "<p id=dialogue name=running>",
    "<form id=form><input name=text>",
]
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
