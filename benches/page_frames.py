"""The chat page while a long answer streams: how long its frames and its tasks take.

    python benches/page_frames.py
    python benches/page_frames.py --tokens 16000 --slower 4

A fake model says as many tokens of Markdown as told, at 100 tokens a second and as fast as it can;
headless Chromium shows them. A frame is the time between two turns of the page to draw; a long task
is what its main thread did at a stretch of 50 ms or more. Each answer is told a few times, and the
best time counts: what other programs take is in all of them. Exit code 1 if there was a long task
each time, or if a reader who had scrolled up was moved. Needs chromium and chromium-driver.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path += [str(Path(__file__).parents[1] / "tests" / "support")]

import browser as chromium
from browser import found, in_page, until
from fake_model import FakeModel
from fake_served import listening
from support.script import add_counts, parser_of, run_script

TEXT = "the lamp of a mill is green and its wheel turns in water"
WORDS = TEXT.split()
SHAPES = ("mixed", "list", "table", "code", "paragraph")
IN_A_STEP = 3  # tokens
READS_AT = 400  # pixels from the top
LONGEST_MS = 50

WATCH = Path(__file__).with_suffix(".js").read_text("utf-8")


def words(number, count):
    return " ".join(WORDS[(number + at) % len(WORDS)] for at in range(count))


def block(shape, number):
    """One part of an answer, with an end of its own where the shape has one."""
    if shape == "list":
        return (
            f"- item {number}: **{words(number, 2)}**, `{words(number, 1)}`, {words(number, 6)}\n"
        )
    if shape == "table":
        head = "| number | name | told |\n|---:|---|---|\n" if number == 0 else ""
        return f"{head}| {number} | *{words(number, 2)}* | {words(number + 3, 5)} |\n"
    if shape == "code":
        head = "```python\n" if number == 0 else ""
        return f"{head}def f_{number}(lamp):\n    return '{words(number, 4)}'\n\n"
    if shape == "paragraph":
        return f"{words(number, 9)}, "
    return (
        f"## Part {number}\n\n{words(number, 30)}.\n\n- {words(1, 5)}\n- {words(2, 5)}\n\n"
        f"```\n{words(3, 8)}\n{words(4, 8)}\n```\n\n| a | b |\n|---|---|\n"
        f"| {words(5, 2)} | {words(6, 2)} |\n| {words(7, 2)} | {words(8, 2)} |\n\n"
    )


def tokens_of(shape, count):
    """So many tokens of Markdown, about four characters each, as tokenizers have them."""
    text, number = "", 0
    while len(text) < 4 * count:
        text += block(shape, number)
        number += 1
    return [text[at : at + 4] for at in range(0, 4 * count, 4)]


class Writer(FakeModel):
    """Says tokens at a pace; a third of its steps is drafted."""

    context, recommended = 1 << 20, {}

    def __init__(self):
        super().__init__()
        self.pause_s = 0.0

    def _steps(self, *arguments):
        for step in super()._steps(*arguments):
            time.sleep(self.pause_s)
            yield step

    def says(self, tokens, per_second):
        parts = ["".join(tokens[at : at + IN_A_STEP]) for at in range(0, len(tokens), IN_A_STEP)]
        drafted = ("automaton", "target", "history")
        self.steps = [(it, (drafted[at % 3],) * len(it)) for at, it in enumerate(parts)]
        self.pause_s = IN_A_STEP / per_second if per_second else 0.0


def watched(browser, url, slower, seconds, scrolls):
    """Ask, and watch until the answer is over; what the page saw."""
    browser.get(url)
    until(browser, lambda: found(browser, "#model").text)
    browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": slower})
    browser.execute_script(WATCH)
    chromium.ask(browser, "Write.", limit="1000000")
    if scrolls:
        log = "document.getElementById('log')"
        until(browser, lambda: in_page(browser, f"{log}.scrollHeight > 3000"), seconds)
        browser.execute_script(f"{log}.scrollTop = {READS_AT}; watched.place = {READS_AT}")
    until(browser, lambda: in_page(browser, "watched.isOver"), seconds)
    return json.loads(in_page(browser, "JSON.stringify(watched)"))


def told(name, rounds):
    """Print a line; whether it was good enough."""
    seen = min(rounds, key=lambda it: (it["longest"], max(it["gaps"])))
    gaps, places = sorted(seen["gaps"]), {round(at) for it in rounds for at in it["places"]}
    median, most_of_them = (gaps[int(part * len(gaps))] for part in (0.5, 0.99))
    place = "kept" if places == {READS_AT} else "MOVED" if places else "-"
    task = f"{seen['longest']:.0f}" if seen["longest"] else "< 50"
    print(
        f"{name:24} {len(gaps):6d} {median:7.1f} {most_of_them:7.1f} {gaps[-1]:7.1f} {task:>10}"
        f"  {place}",
        flush=True,
    )
    return not seen["longest"] and place != "MOVED"


def main():
    parser = parser_of(__doc__)
    add_counts(parser, tokens=(4000, "of each answer"), rounds=(3, "of each answer"))
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--slower", type=float, default=1, help="slow the page's processor so much")
    parser.add_argument("--quick", action="store_true", help="only as fast as the model can")
    options = parser.parse_args()
    if not chromium.is_here():
        sys.exit("page_frames: chromium or chromedriver is missing: apt install chromium-driver")
    model, is_good = Writer(), True
    print(f"{'':24} {'frames':>6} {'between frames, ms':>23} {'longest':>10}")
    print(f"{'answer':31} {'median':>7} {'99 %':>7} {'most':>7} {'task, ms':>10}  reader")
    with tempfile.TemporaryDirectory() as profile, listening(model) as url:
        page = chromium.opened(profile)
        try:
            for shape in options.shapes:
                for pace in (None,) if options.quick else (None, 100):
                    model.says(tokens_of(shape, options.tokens), pace)
                    most_s = options.tokens / (pace or 20) + 60
                    rounds = [
                        watched(page, url, options.slower, most_s, scrolls=bool(pace))
                        for _ in range(options.rounds)
                    ]
                    name = f"{shape}, {f'{pace} tokens/s' if pace else 'at once'}"
                    is_good &= told(name, rounds)
        finally:
            page.quit()
    return int(not is_good)


if __name__ == "__main__":
    run_script(main)
