"""Many clients of one server: coordgen beside llama.cpp, on the same GGUF file and token ids.

    python benches/peers/clients.py MODEL.gguf
    python benches/peers/clients.py MODEL.gguf --quick --json clients.json
    python benches/peers/clients.py --show clients.json --picture clients.svg

`coordgen serve` and llama.cpp's `llama-server` answer `--parallel` requests at a time; 1, 2, 4 and
8 clients ask for the same prompts, in turns, greedily, all answers of the same length. Whole
answers are those of prompts that nobody has read before; then each prompt is read, and the answers
alone are timed. Last, a long prompt is sent while a short request, and then two streams, are being
answered. A server that is absent or fails is named, and the others are still reported.

Needs `make peers`, which builds llama.cpp for this machine.
"""

import json
import sys
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from contest import ContestantFailedError
from coordgen_rs.cli.terminal.streams import progress
from coordgen_rs.errors import OptionError
from coordgen_rs.lab.tables import rotated
from coordgen_rs.loading.directory import open_bundle
from coordgen_rs.text.tokenizer import Tokenizer
from live.prompts import (
    Conversation,
    chat_template,
    check_room,
    encode,
    of_lengths,
    read_conversations,
    shorter,
)
from live.report import head
from live.weights import Weights
from over_http import report
from over_http.latency import latency_of
from over_http.load import loaded
from over_http.servers import KINDS, LlamaServer, OurServer
from support import picture
from support.script import (
    PROMPTS,
    add_counts,
    add_json,
    add_llama_cpp,
    parser_of,
    reports_errors,
    run_script,
)

SCHEMA_VERSION = 1
PEERS = ("llama.cpp",)
_SHORTS = ("Say hello.", "Count from one to a hundred.", "Tell a long story about a lighthouse.")
_BESIDE = 3
"""Requests at a time: a long prompt and two streams."""
_QUICK = {
    "limit": 1,
    "clients": [1, 4],
    "rounds": 1,
    "max_new_tokens": 16,
    "long": 1000,
    "settings": ["plain"],
}


_ASKED = (
    *("threads", "parallel", "clients", "rounds", "limit", "max_prompt_tokens"),
    *("max_new_tokens", "long", "settings", "drafts", "quick"),
)


@reports_errors
def main(arguments=None):
    """Measure and print; 1 if a server failed or answers of ours differ, 2 if nothing can be."""
    options = _parser().parse_args(arguments)
    if options.picture is not None:
        picture.check(options.picture)
    if options.show is not None:
        return _shown(_kept(options.show), options)
    if options.model is None:
        raise OptionError("give a MODEL.gguf, or --show FILE for what was measured before")
    if options.quick:
        vars(options).update(_QUICK)
    if options.long and options.parallel < _BESIDE:
        raise OptionError(f"--long is answered beside others: --parallel {_BESIDE}, or --long 0")
    weights = Weights(options.model, options.work)
    prompts, long, shorts, context = _prompts(options)
    with ExitStack() as stack:
        rows, facts, failures = _started(options, context, stack)
        loads = _loads(options, rows, prompts, failures)
        latencies = _latencies(options, rows, long, shorts, failures)
    asked = {name: getattr(options, name) for name in _ASKED}
    document = head(SCHEMA_VERSION, weights, prompts, asked) | {
        "facts": facts,
        "loads": report.load_rows([row for row in rows if row.name in loads], loads),
        "latencies": report.latency_rows([row for row in rows if row.name in latencies], latencies),
        "failures": failures,
    }
    if options.json:
        options.json.write_text(json.dumps(document), encoding="utf-8")
    return _shown(document, options)


def _kept(path):
    """The document of a file; raises OptionError or OSError where it is none."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise OptionError(f"--show {path}: {error}") from error
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        raise OptionError(f"--show {path}: is no file of --json, schema version {SCHEMA_VERSION}")
    return document


def _shown(document, options):
    """Print the tables of a document and draw its picture; the exit code."""
    asked, failures = document["options"], document["failures"]
    report.show(document, asked["threads"], asked["parallel"])
    if options.picture is not None and document["loads"]:
        report.draw(document["loads"], options.picture)
    if num_unlike := report.num_unlike(document):
        print(f"{num_unlike} answers of ours are not those of plain decoding", file=sys.stderr)
    return 1 if failures or num_unlike else 0


def _prompts(options):
    """Prompts in the order in which they are asked, a long one, short ones, and the context.

    Raises CoordgenError or OSError where there are none that can be used.
    """
    with progress() as on_progress:
        bundle = open_bundle(options.model, on_progress=on_progress)
    tokenizer, template = Tokenizer.of(bundle), chat_template(options.model)
    prompts = encode(read_conversations(options.prompts, options.limit), template, tokenizer)
    prompts = shorter(prompts, options.max_prompt_tokens)
    context = bundle.manifest.context
    check_room(prompts, context - options.max_new_tokens, "give --max-prompt-tokens")
    asked = [Conversation("", "short", [{"role": "user", "content": text}]) for text in _SHORTS]
    shorts = [prompt.token_ids for prompt in encode(asked, template, tokenizer)["short"]]
    if not options.long:
        return prompts, None, shorts, context
    texts = encode(read_conversations(options.prompts), template, tokenizer)
    pieces = of_lengths(texts, [options.long], "--long")
    check_room(pieces, context - 1, "give a shorter --long")
    return prompts, next(chain.from_iterable(pieces.values())).token_ids, shorts, context


def _started(options, context, stack):
    """Rows of the servers that could be started, facts of these, and why others could not."""
    logs = options.work / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    common = options.threads, options.parallel
    begin = {"coordgen": lambda: OurServer(options.model, *common, logs, options.limit_s)}
    for kind in options.settings if "llama.cpp" in options.peers else ():
        begin[f"llama.cpp {kind}"] = lambda kind=kind: LlamaServer(
            options.model, kind, *common, context, options.llama_cpp, logs, options.limit_s
        )
    rows, facts, failures = [], {}, {}
    for name, start in begin.items():
        try:
            server = start()
        except ContestantFailedError as error:
            failures[name] = str(error)
            continue
        stack.callback(server.close)
        if isinstance(server, LlamaServer):
            facts[name] = server.facts
        rows += [row for row in server.rows if options.drafts or not row.drafts]
    return rows, facts, failures


def _loads(options, rows, prompts, failures):
    """`Load`s of each round, by row name and number of clients; what fails is left out."""
    token_ids = [prompt.token_ids for prompt in chain.from_iterable(prompts.values())]
    loads = {row.name: {number: [] for number in options.clients} for row in rows}
    total, done = options.rounds * len(options.clients) * len(rows), 0
    with progress() as on_progress:
        for turn in range(options.rounds):
            for index, number in enumerate(options.clients):
                for row in rotated(rows, turn + index):
                    if row.name in loads:
                        try:
                            load = loaded(row, token_ids, number, options.max_new_tokens)
                            loads[row.name][number].append(load)
                        except ContestantFailedError as error:
                            failures[row.name] = str(error)
                            del loads[row.name]
                    done += 1
                    on_progress(f"{row.name}, {number} at a time", done, total)
    return loads if options.clients else {}


def _latencies(options, rows, long, shorts, failures):
    """`Latency` by row name; what fails is left out."""
    latencies = {}
    with progress() as on_progress:
        for done, row in enumerate(rows if options.long else (), 1):
            if row.name not in failures:
                given = long, shorts, options.rounds
                try:
                    latencies[row.name] = latency_of(row, *given)
                except ContestantFailedError as error:
                    failures[f"{row.name}, a long prompt"] = str(error)
            on_progress(f"{row.name}, a long prompt", done, len(rows))
    return latencies


def _parser():
    parser = parser_of(__doc__)
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL.gguf")
    parser.add_argument(
        "--prompts", type=Path, default=PROMPTS, metavar="DIR", help="default %(default)s"
    )
    add_counts(
        parser,
        limit=(None, "only N prompts a task"),
        max_prompt_tokens=(1000, "leave longer prompts out"),
        threads=(2, "compute threads of each server"),
        parallel=(4, "requests that a server answers at a time"),
        clients=([1, 2, 4, 8], "clients at a time; none leaves this out"),
        rounds=(3, "times that each prompt is answered"),
        max_new_tokens=(48, "tokens of an answer"),
        limit_s=(1800, "seconds for one answer"),
    )
    add_counts(parser, least=0, long=(4000, "tokens of the long prompt; 0 leaves it out"))
    parser.add_argument(
        "--settings", nargs="+", choices=KINDS, default=KINDS, help="llama.cpp's; default all"
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument(
        "--no-drafts", dest="drafts", action="store_false", help="only rows without drafts"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few prompts, 1 and 4 clients, once: to see it run"
    )
    add_llama_cpp(parser)
    add_json(parser, to_file=True)
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="measure nothing: tables of a file of --json"
    )
    parser.add_argument("--picture", type=Path, metavar="FILE.svg")
    return parser


if __name__ == "__main__":
    run_script(main)
