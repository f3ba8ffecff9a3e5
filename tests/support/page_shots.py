"""Pictures of the chat page: wide and narrow, light and dark, empty, with an answer and its tree.

In: bundles. Out: picture files, and what the browser's console tells, which must be nothing.
`make page-shots` takes those to be looked at; with `--docs` it is the four of the documents.

    PYTHONPATH=tests/support:models python tests/support/page_shots.py build/page BUNDLE
"""

import argparse
import base64
import sys
import tempfile
from pathlib import Path

import browser as chromium
from browser import found, in_page, until
from checkpoints import ROOT
from coordgen_rs.bundle.directory import Bundle
from served import served

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}\n{% endfor %}"
TEXT = (ROOT / "models" / "prompts" / "rag.txt").read_text()
CODE = """Rename the variable total to amount:

```python
def bill(items):
    total = 0
    for item in items:
        total += item.price * item.count
    if total > 100:
        total -= total // 10
    return total
```"""
SIZES = {"wide": (1000, 860), "narrow": (360, 740)}
THEMES = ("light", "dark")


def save(browser, path):
    """A picture of what is shown, in the format that the name tells."""
    kind = path.suffix[1:]
    asked = {"format": kind} | ({"quality": 70} if kind == "webp" else {})
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", asked)
    path.write_bytes(base64.b64decode(shot["data"]))


def answered(browser, url, text):
    """The page, fresh, with an answer to a text."""
    browser.get(url)
    until(browser, lambda: found(browser, "#model").text)
    chromium.ask(browser, text, limit="128", temperature="0")
    chromium.answered(browser, 300)


def screens(browser):
    """Each size and theme in turn, by name."""
    for size, (width, height) in SIZES.items():
        chromium.resize(browser, width, height)
        for theme in THEMES:
            in_page(browser, f"document.documentElement.dataset.theme = '{theme}'")
            yield f"{size}-{theme}"


def to_look_at(browser, url, folder, name, text):
    """All that one looks at when the page has changed."""
    browser.get(url)
    until(browser, lambda: found(browser, "#model").text)
    for screen in screens(browser):
        save(browser, folder / f"{name}-{screen}-empty.png")
    in_page(browser, "document.getElementById('more').open = true")
    for screen in screens(browser):
        save(browser, folder / f"{name}-{screen}-settings.png")
    answered(browser, url, text)
    for screen in screens(browser):
        save(browser, folder / f"{name}-{screen}.png")
    chromium.show_tree(browser)
    for screen in screens(browser):
        in_page(browser, "document.getElementById('log').scrollTop = 1e6")
        save(browser, folder / f"{name}-{screen}-tree.png")
    found(browser, "#shelves").click()
    for screen in screens(browser):
        save(browser, folder / f"{name}-{screen}-shelf.png")


def for_documents(browser, url, folder):
    """Those of the documents: an answer with its tree, in each size and theme."""
    answered(browser, url, (ROOT / "docs" / "council.txt").read_text())
    chromium.show_tree(browser)
    for screen in screens(browser):
        in_page(browser, "document.getElementById('log').scrollTop = 1e6")
        save(browser, folder / f"page-{screen}.webp")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where pictures are written")
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--docs", action="store_true", help="take the four of the documents")
    options = parser.parse_args()
    if not chromium.is_here():
        sys.exit("page_shots: chromium or chromedriver is missing: apt install chromium-driver")
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        template = Path(scratch) / "own.jinja"
        template.write_text(TEMPLATE)
        browser = chromium.opened(Path(scratch) / "profile")
        try:
            for path in options.bundles:
                has_chat = Bundle.open(path).manifest.chat is not None
                own = () if has_chat else ("--chat-template", str(template))
                with served(path, *own) as (_, url):
                    if options.docs:
                        for_documents(browser, url, options.folder)
                    else:
                        text = CODE if has_chat else TEXT
                        to_look_at(browser, url, options.folder, path.name, text)
            wrong = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        finally:
            browser.quit()
    for line in wrong:
        print(line["message"])
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
