"""`coordgen verify`: whether a server's answers are the same with and without its drafts.

With `--model`, the answers without drafts are our own: `coordgen serve` in a process of its own.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordgen_rs.cli import option
from coordgen_rs.cli.parser import Parser
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import OptionError
from coordgen_rs.errors.json_text import JsonTextError, parse_json
from coordgen_rs.lab.tables import tell
from coordgen_rs.lab.verify.examination import examine
from coordgen_rs.lab.verify.replies import AnswerError
from coordgen_rs.lab.verify.report import Report, as_markdown, as_text
from coordgen_rs.lab.verify.server import (
    OURS,
    WITHOUT_DRAFTS,
    Sampling,
    Server,
    find_server,
    parse_address,
    read_questions,
)

EXAMPLES = """\
Any server in the form of OpenAI's API is asked the same questions with and without drafts, streamed
and whole, greedy and with a seed, and its answers are compared byte for byte. The drafts of
`coordgen serve` and of older llama.cpp servers are switched off by a field of the request; for
others give --plain-url, --plain-fields or --model. A key is taken from COORDGEN_API_KEY.

exit codes:
  0    exact
  1    answers differ
  2    wrong use
  3    no verdict: the server differs from itself, or nothing answered without drafts
  4    the server failed, or cannot be reached
  130  interrupted (Ctrl-C): the report so far is printed

examples:
  coordgen verify http://127.0.0.1:8080
  coordgen verify http://127.0.0.1:8000 --plain-url http://127.0.0.1:8001 --markdown
  coordgen verify http://127.0.0.1:8080 --model model.gguf --seeds none --only tools,json
  coordgen verify http://127.0.0.1:8080 --prompts questions.jsonl --json
"""

_KEY = "COORDGEN_API_KEY"
_SECRET = ("api_key", "plain_api_key")
_NONE = "none"
_READY = re.compile(r"serving .* on (\S+) ")
_END_S = 15


def _seeds(name: str, typed: str) -> list[int]:
    if typed == _NONE:
        return []
    parse: Any = option.several(option.count(f"{name} N", least=0, most=2**53)).parse
    found: list[int] = parse(name, typed)
    return found


def _fields(name: str, typed: str) -> dict[str, Any]:
    """An object of JSON.

    Raises:
        OptionError: It is none.
    """
    try:
        found = parse_json(typed, name)
    except (JsonTextError, UnicodeEncodeError) as error:
        raise OptionError(f"{name} must be a JSON object: {error}") from error
    if not isinstance(found, dict):
        raise OptionError(f"{name} must be a JSON object, but is {typed}")
    return found


_OPTIONS = (
    option.text("url URL", may_be_empty=False).help(
        "the server, with the path of its API if that is not /v1"
    ),
    option.text("--name MODEL", may_be_empty=False).help(
        "the model to ask; default: the first that the server lists"
    ),
    option.path("--prompts FILE").help(
        "ask these instead: JSON lines with messages or prompt, and maybe name, kind, max_tokens, "
        "tools, tool_choice, response_format, times"
    ),
    option.names("--only KIND,..").help(
        "only questions of these kinds: chat, edit, json, tools, copy, languages, unicode"
    ),
    option.count("--limit N").help("only the first N questions of each kind"),
    option.count("--max-tokens N").help("most tokens of an answer; default: as the questions say"),
    option.Option("--seeds N,..", _seeds, {"default": [1]}).help(
        "seeds to sample with, besides greedy answers; none for greedy alone; default 1"
    ),
    option.count("--rounds N", most=10_000, default=1).help(
        "ask everything N times, for faults that are rare; default %(default)s"
    ),
    option.count("--repeats N", most=10_000, default=3).help(
        "ask again N times where answers differ, to tell the server's own noise apart; default "
        "%(default)s"
    ),
    option.number("--timeout SECONDS", least=0.01, most=86_400, default=120).help(
        "most time for an answer; default %(default)s"
    ),
    option.text("--api-key KEY", may_be_empty=False).help(
        f"sent to URL; better given as {_KEY}: others see command lines"
    ),
    option.text("--plain-api-key KEY", may_be_empty=False).help("sent to --plain-url"),
)

_PLAIN = (
    option.text("--plain-url URL", may_be_empty=False).help(
        "the same model and settings, served without drafts"
    ),
    option.Option("--plain-fields JSON", _fields).help(
        "fields of a request that switch drafts off"
    ),
    option.path("--model BUNDLE").help(
        "compare with our own plain decoding of the same file (needs the extra server); seeds "
        "draw other tokens in other engines: --seeds none"
    ),
)


def add_arguments(parser: Parser) -> None:
    """Declare the options of the command."""
    parser.declare(*_OPTIONS)
    parser.declare(_PLAIN)
    parser.declare((option.JSON, option.flag("--markdown").help("print Markdown, for an issue")))


def run(options: argparse.Namespace) -> int:
    """Ask, print the report, and return the exit code of its verdict.

    Raises:
        OptionError: An option or a file of questions is wrong.
    """
    if options.plain_api_key is not None and options.plain_url is None:
        raise OptionError("--plain-api-key needs --plain-url")
    key = options.api_key or os.environ.get(_KEY) or None
    address = parse_address("URL", options.url, key, options.timeout)
    questions = read_questions(
        options.prompts or OURS,
        kinds=options.only or (),
        limit=options.limit,
        max_tokens=options.max_tokens,
    )
    samplings = [Sampling(), *(Sampling(seed) for seed in options.seeds)]
    report = Report(_command(options), total=len(questions) * len(samplings))
    try:
        with ExitStack() as open_until_told, progress() as on_progress:
            report.server = find_server(address, options.name)
            report.plain, report.plain_is = _plain(options, report.server, open_until_told)
            sides = report.server, report.plain
            effort = {"rounds": options.rounds, "repeats": options.repeats}
            for finding in examine(*sides, questions, samplings, **effort):
                report.findings.append(finding)
                on_progress("asking", len(report.findings), report.total)
    except AnswerError as error:
        report.failure = str(error)
    except KeyboardInterrupt:
        report.is_interrupted = True
    shown = as_markdown if options.markdown else as_text
    tell(options.json, report.to_json(), lambda: print(shown(report)))
    return report.exit_code


def _plain(
    options: argparse.Namespace, server: Server, until_told: ExitStack
) -> tuple[Server | None, str]:
    """What answers without drafts, and how it does, in words.

    Raises:
        AnswerError: It cannot be reached.
        OptionError: The model cannot be served.
    """
    if options.plain_url is not None:
        key, timeout_s = options.plain_api_key, options.timeout
        address = parse_address("--plain-url", options.plain_url, key, timeout_s)
        if address.shown == server.address.shown:
            raise OptionError("--plain-url is URL itself: for one server there is --plain-fields")
        plain = find_server(address, options.name)
        return plain, f"{plain.kind} {plain.version or ''} at {address.shown}".replace("  ", " ")
    if options.model is not None:
        url = until_told.enter_context(plain_server(options.model))
        plain = find_server(parse_address("--model", url, None, options.timeout), None)
        ours = WITHOUT_DRAFTS["coordgen"]
        return replace(plain, fields=ours), f"our own decoding of {options.model.name}"
    fields: dict[str, Any] | None = options.plain_fields
    if fields is None:
        fields = WITHOUT_DRAFTS.get(server.kind)
    if fields is None:
        return None, "nothing: give --plain-url, --plain-fields or --model"
    return replace(
        server, fields={**server.fields, **fields}
    ), f"the same server, with {json.dumps(fields)}"


def _command(options: argparse.Namespace) -> str:
    """The command line again, without keys and without what is as it is by default."""
    words = ["coordgen", "verify", options.url]
    for given in (*_OPTIONS[1:], *_PLAIN):
        name = given.shown.partition(" ")[0]
        place = name.removeprefix("--").replace("-", "_")
        value = getattr(options, place)
        if value is None or value == given.keywords.get("default") or place in _SECRET:
            continue
        if isinstance(value, dict):
            value = json.dumps(value)
        elif isinstance(value, list):
            value = ",".join(map(str, value)) or _NONE
        words += [name, str(value)]
    words += [f"--{name}" for name in ("json", "markdown") if getattr(options, name)]
    return shlex.join(words)


@contextmanager
def plain_server(model: Path) -> Iterator[str]:
    """Serve a model on a free port of this machine.

    Args:
        model: What `coordgen serve` opens.

    Yields:
        The server's URL, once it answers.

    Raises:
        OptionError: It cannot be served; the message is that of `coordgen serve`.
    """
    command = [sys.executable, "-m", "coordgen_rs", "serve", str(model), "--port", "0"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for the report
    ) as process:
        try:
            yield _ready(process)
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[str]) -> str:
    """The URL, once the server tells that it answers.

    Raises:
        OptionError: It ended.
    """
    said = ""
    for line in process.stderr or ():
        said = line.strip() or said
        if found := _READY.search(line):
            return found[1]
    raise OptionError(f"--model: {said.removeprefix('coordgen: error: ') or 'it cannot be served'}")
