"""Pictures of the chat page, to be looked at: themes, a narrow screen, a draft tree, an error.

In: bundles. Out: PNG files, and the numbers of messages in the browser's console, which must be 0.
`make page-shots` runs it.

    PYTHONPATH=tests/support:models python tests/support/page_shots.py build/page BUNDLE
"""

import argparse
import sys
import tempfile
from pathlib import Path

import browser as chromium
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
SIZES = {"wide": (1100, 900), "narrow": (360, 740)}


def shots(browser, url, folder, name, text):
    """Pictures of one server's page."""
    for size, (width, height) in SIZES.items():
        for theme in ("light", "dark"):
            chromium.resize(browser, width, height)
            browser.get(url)
            chromium.until(browser, lambda: chromium.found(browser, "#model").text)
            chromium.in_page(browser, f"document.documentElement.dataset.theme = '{theme}'")
            browser.save_screenshot(folder / f"{name}-{size}-{theme}-empty.png")
            chromium.ask(browser, text, limit="96")
            chromium.answered(browser, 300)
            browser.save_screenshot(folder / f"{name}-{size}-{theme}.png")
            chromium.show_tree(browser)
            browser.save_screenshot(folder / f"{name}-{size}-{theme}-tree.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where pictures are written")
    parser.add_argument("bundles", type=Path, nargs="+")
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
                    shots(browser, url, options.folder, path.name, CODE if has_chat else TEXT)
            wrong = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        finally:
            browser.quit()
    for line in wrong:
        print(line["message"])
    print(f"{len(list(options.folder.glob('*.png')))} pictures in {options.folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
