"""`coordgen generate`: answer a prompt, printing text as it comes.

In: options, and a prompt. Out: the answer, and what it took; with `--compare` also its speed with
drafts beside that without.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from coordgen_rs._core import PLAIN
from coordgen_rs.cli import model_options, option
from coordgen_rs.cli.exit_codes import DIFFERENT, DONE
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal import text
from coordgen_rs.cli.terminal.text import SourceColours, counted, wants_colours
from coordgen_rs.errors import ChatTemplateError, OptionError, arguments
from coordgen_rs.loading.directory import check_template
from coordgen_rs.model import Model
from coordgen_rs.model.answer import Answer
from coordgen_rs.model.options import REQUEST, RequestOptions
from coordgen_rs.model.stream import Stream, collect

EXAMPLES = """\
The exit code is 1 where --compare finds other tokens, or the JSON of --json-schema was cut off.
On a terminal, the answer is coloured by source, with a legend below it; uncoloured text comes from
the model without a draft. NO_COLOR=1 turns colours off, FORCE_COLOR=1 turns them on.

A chat model expects its prompt in its chat template: --chat puts it there.

examples:
  coordgen generate --model bundle --chat --user "Is a lion an animal?" --system "Be short."
  coordgen generate --model bundle --chat --prompt-file question.txt --compare
  coordgen generate bundle "Once upon a time" --max-new-tokens 64
  cat question.txt | coordgen generate bundle - --draft prompt-lookup --json
  coordgen generate --model bundle --prompt-file mail.txt --history answers --namespace mail/alice
  coordgen generate --model bundle --prompt-file mail.txt --json-schema appointment.json
  coordgen generate --model bundle --prompt "Is a lion an animal? " --regex "yes|no"
"""

_WITHOUT_TEMPLATE = (
    "coordgen: the model expects its chat template, and the prompt goes to it as it is: "
    "add --chat to send it as a user's message"
)

_CUT = {"length": "--max-new-tokens is reached", "capacity": "the context is full"}
"""Why an answer ended before its end."""

LEAST_S = 1.0
"""An answer may take 20 ms, in which another process can be in the way for most of the time."""

MOST_S = 3.0
"""No round starts later than this."""

STEADY_WITHIN = 1.05
"""How far apart the ends of the interval of the speedup may lie, as a ratio."""

_REMEMBERING = {
    "diaa-table",
    "earlier-requests",
    "history",
    "lookup-table",
    "recent",
    "sam-earlier-requests",
    "token-recycling",
}
"""Sources that would draft a second answer from the first."""


def add_arguments(parser: Parser) -> None:
    """The options of the command."""
    parser.declare(
        option.path("--model BUNDLE").also("-m").help(option.BUNDLE_HELP),
        option.text("words BUNDLE PROMPT", nargs="*", default=[]).help(
            "the same without --model and --prompt; a prompt - is read from stdin"
        ),
        (
            option.text("--prompt TEXT").also("-p").help("the prompt itself"),
            option.path("--prompt-file FILE").help("a UTF-8 text file with the prompt"),
            option.text("--user TEXT").help(
                "the user's message; with --chat, where --prompt means the same"
            ),
        ),
        option.flag("--chat").help(
            "send the prompt as a user's message, by the model's chat template"
        ),
    )
    model_options.add_request_arguments(parser)
    model_options.add_arguments(parser)
    parser.declare(option.JSON)
    parser.declare_group(
        "output",
        option.flag("--compare").help(
            "also decode without drafts, and compare; a short answer is repeated in turns, and "
            "tokens/s are medians"
        ),
        option.of(REQUEST, "logprobs", metavar="N").help(
            "with --json: also tell how likely each token was, and the N likeliest in its place"
        ),
    )


def run(options: argparse.Namespace) -> int:
    """Answer the prompt, and print what it took.

    Exit code 1 if `--compare` finds a difference, or JSON is cut off.

    Raises:
        OptionError: An option would be ignored.
    """
    _take_words(options)
    if not options.chat:
        option.refuse(options, ("user", "system", "chat_template"), "needs --chat")
    if options.draft == PLAIN:
        option.refuse(options, ("compare",), f"is with drafts and without, but --draft is {PLAIN}")
    if not options.json:
        option.refuse(options, ("logprobs",), "needs --json")
    prompt, request = _prompt(options), model_options.request(options)
    request["logprobs"] = options.logprobs
    request["grammar"] = model_options.grammar(options)
    if options.chat and options.chat_template is None:
        check_template(options.model, context=options.context)
    with model_options.opened(options) as model:
        if not options.chat and sys.stderr.isatty() and _has_template(model):
            text.tell(_WITHOUT_TEMPLATE)
        asked = partial(_asked, model, prompt, options)
        stream = asked(request)
        if not prompt:
            text.tell("coordgen: the prompt is empty, so the answer may be about anything")
        answer = collect(stream) if options.json else _show(stream)
        report = _report(answer) | {"commit": model.commit, "provider": model.provider}
        if options.compare:
            compared = compare(
                answer,
                lambda drafts: collect(asked({**request, "drafts": drafts, "seed": answer.seed})),
                is_stored=options.history is not None,
            )
            report |= compared.to_json()
    limit = _CUT.get(report["finish_reason"])
    if options.json:
        print(json.dumps(report))
    else:
        if limit is not None:
            text.tell(f"coordgen: the answer was cut off: {limit}")
        print(_closing_line(report), file=sys.stderr)
    is_half = limit is not None and options.json_schema is not None
    return DONE if report.get("identical", True) and not is_half else DIFFERENT


def _asked(
    model: Model, prompt: str, options: argparse.Namespace, request: RequestOptions
) -> Stream:
    """The answer to the prompt: as it is, or as a user's message."""
    if not options.chat:
        return model.stream(prompt, **request)
    system = [] if options.system is None else [{"role": "system", "content": options.system}]
    return model.stream_chat([*system, {"role": "user", "content": prompt}], **request)


def _has_template(model: Model) -> bool:
    """Whether the model has a chat template; one that cannot be read is none to advise."""
    try:
        return model.has_chat_template
    except ChatTemplateError:
        return False


def _take_words(options: argparse.Namespace) -> None:
    """Take the bundle and the prompt from the words that stand alone.

    Raises:
        OptionError: There is no bundle, or a word too many.
    """
    words = options.words
    if options.model is None:
        if not words or words[0] == "-":
            raise OptionError(
                "no model: give --model BUNDLE, or the bundle first, as in chat BUNDLE"
            )
        options.model = arguments.path("BUNDLE", words.pop(0))
    has_prompt = (options.prompt, options.prompt_file, options.user) != (None,) * 3
    if len(words) > (0 if has_prompt else 1):
        raise OptionError(
            f"{arguments.shown(words[-1])} is a word too many: give a bundle and a prompt, and put "
            "quotes around a prompt of several words"
        )
    if words:
        options.prompt = text.read_stdin() if words[0] == "-" else words[0]


def _prompt(options: argparse.Namespace) -> str:
    """The prompt.

    Raises:
        OptionError: There is none.
    """
    prompt = options.user if options.prompt is None else options.prompt
    if prompt is None and options.prompt_file is not None:
        prompt = text.read_file(options.prompt_file)
    elif prompt is None:
        raise OptionError(
            "no prompt: give --prompt TEXT, --prompt-file FILE, or - to read it from stdin"
        )
    return str(prompt)


def _show(stream: Stream) -> Answer:
    """Print the text as it comes, coloured by source on a terminal."""
    colours = SourceColours(sys.stdout)
    with stream:
        for piece in stream:
            print(colours.shown(piece), end="", flush=True)
    print(flush=True)
    answer = stream.answer
    if colours.is_on:
        print(colours.legend(answer.sources, painted=wants_colours(sys.stderr)), file=sys.stderr)
    return answer


def _report(answer: Answer) -> dict[str, Any]:
    spans = [span._asdict() for span in answer.spans]
    told = {"text": answer.text, "token_ids": answer.token_ids, "spans": spans}
    if answer.logprobs is not None:
        told["logprobs"] = [
            {
                "token_id": one.token_id,
                "logprob": one.logprob,
                # JSON has no infinity: what is impossible has no number.
                "top": [
                    {"token_id": id_, "logprob": logprob if logprob > -math.inf else None}
                    for id_, logprob in one.top
                ],
            }
            for one in answer.logprobs
        ]
    return told | answer.stats.to_json()


def _closing_line(report: dict[str, Any]) -> str:
    line = (
        f"{counted(report['new_tokens'], 'token')} in {counted(report['steps'], 'step')}, "
        f"{report['tokens_per_step']:.2f} tokens_per_step, "
        f"{report['tokens_per_s']:.0f} tokens/s"
    )
    if "identical" in report:
        same = "the same tokens" if report["identical"] else "DIFFERENT TOKENS"
        line += f" with drafting, {report['plain_tokens_per_s']:.0f} without: {same}"
        if report["compare_rounds"] > 1:
            line += f" (medians of {report['compare_rounds']} rounds)"
    if report["seed"] is not None:
        line += f", seed {report['seed']}"
    return line


@dataclass(frozen=True)
class PlainComparison:
    """What both sides took.

    Attributes:
        tokens_per_s: With drafts, decoding only; the median of all rounds.
        plain_tokens_per_s: The same without drafts.
        rounds: How often each side answered.
        identical: Whether every answer had the same tokens.
    """

    tokens_per_s: float
    plain_tokens_per_s: float
    rounds: int
    identical: bool

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON types."""
        return {
            "tokens_per_s": round(self.tokens_per_s, 2),
            "plain_tokens_per_s": round(self.plain_tokens_per_s, 2),
            "compare_rounds": self.rounds,
            "identical": self.identical,
        }


def compare(
    answer: Answer,
    again: Callable[[bool], Answer],
    *,
    is_stored: bool,
    clock: Callable[[], float] = time.perf_counter,
) -> PlainComparison:
    """Answer in turns, with and without drafts, until the speedup is steady or time is up.

    Which side begins changes from round to round. `answer` is the first round's with drafts. There
    is no second round where a second answer would be drafted from the first, or would be kept as
    another request: its speed would not be that of a first answer. There is none either after two
    answers that differ.

    Args:
        answer: With drafts, as it was shown.
        again: Answers the same prompt; its argument says whether with drafts.
        is_stored: Whether answers with drafts are kept in a history.
        clock: Seconds that only grow.
    """
    start = clock()
    rounds = [(answer, again(False))]
    can_repeat = not is_stored and not _REMEMBERING & answer.stats.per_source.keys()
    while can_repeat and _all_same(rounds):
        elapsed_s = clock() - start
        is_done = elapsed_s >= LEAST_S and is_steady(
            [plain.stats.decode_s / drafted.stats.decode_s for drafted, plain in rounds]
        )
        if is_done or elapsed_s >= MOST_S:
            break
        plain_first = len(rounds) % 2 == 1
        answers = {drafts: again(drafts) for drafts in (not plain_first, plain_first)}
        rounds.append((answers[True], answers[False]))
    drafted, plain = zip(*rounds, strict=True)
    return PlainComparison(
        tokens_per_s=median(given.stats.tokens_per_s for given in drafted),
        plain_tokens_per_s=median(given.stats.tokens_per_s for given in plain),
        rounds=len(rounds),
        identical=_all_same(rounds),
    )


def is_steady(speedups: list[float]) -> bool:
    """Whether the median is known to `STEADY_WITHIN`, at 95 % confidence.

    The interval is that of order statistics (the binomial distribution, in its normal
    approximation), which assumes nothing of how times are spread. Below six values there is none.
    """
    count = len(speedups)
    if count < 6:
        return False
    ordered = sorted(speedups)
    reach = 0.98 * math.sqrt(count)
    low = ordered[max(0, math.floor(count / 2 - reach))]
    high = ordered[min(count - 1, math.ceil(count / 2 + reach) - 1)]
    return high <= STEADY_WITHIN * low


def _all_same(rounds: list[tuple[Answer, Answer]]) -> bool:
    return len({given.token_ids for pair in rounds for given in pair}) == 1
