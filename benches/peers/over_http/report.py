"""What servers did for some numbers of clients: as JSON types, tables and a picture.

In: loads and latencies by row. Out: rows of figures, each with its median, lowest and highest over
the rounds; tables show nothing that they lack.
"""

from functools import partial

from coordgen_rs.lab.tables import summarize
from over_http.load import Figures, figures_of, num_different
from support import picture
from support.tables import show_rows

_TABLES = {
    "decode_tokens_per_s": ("answers alone, tokens/s of all clients", 1.0, 1),
    "whole_tokens_per_s": ("whole answers, new tokens/s of all clients, prompts included", 1.0, 1),
    "tokens_per_step": ("tokens per step of a request", 1.0, 2),
    "first_p50_s": ("first token of a whole answer, ms, median", 1e3, 0),
    "first_p95_s": ("first token of a whole answer, ms, 95th percentile", 1e3, 0),
    "answer_p50_s": ("whole answer, ms, median", 1e3, 0),
}
_LATENCIES = {"": "{name}"} | {
    head: (lambda row, name=name: f"{1e3 * row[name]:.0f}")
    for head, name in (
        ("short request alone, first token, ms", "short_alone_s"),
        ("beside, ms", "short_beside_s"),
        ("long prompt alone, ms", "long_alone_s"),
        ("long prompt beside, ms", "long_beside_s"),
    )
}
_LATENCIES |= {
    "a stream alone, tokens/s": "{alone_tokens_per_s:.1f}",
    "beside, tokens/s": "{beside_tokens_per_s:.1f}",
}


def load_rows(rows, loads):
    """The figures of each row, as JSON types.

    Args:
        rows: `Row`s that answered everything.
        loads: `Load`s of each round, by row name and number of clients.
    """
    return [_load_row(row, loads[row.name], _expected(row, rows, loads)) for row in rows]


def _expected(row, rows, loads):
    """Tokens by prompt: for the fewest clients the row's own, and of ours those without drafts."""
    plain = [other for other in rows if other.engine == row.engine and not other.drafts]
    if row.engine == "coordgen" and plain:
        row = plain[0]
    return [reply.tokens for reply in next(iter(loads[row.name].values()))[0].whole]


def _load_row(row, by_clients, expected):
    return {
        "name": row.name,
        "engine": row.engine,
        "drafts": row.drafts,
        "clients": [
            {
                "clients": num_clients,
                "num_answers": sum(len(load.whole) + len(load.alone) for load in of),
                "num_different": num_different(of, expected),
                "read_tokens_alone": sum(reply.num_read for load in of for reply in load.alone),
                "figures": {
                    name: summarize([getattr(figures_of(load), name) for load in of])
                    for name in Figures._fields
                },
            }
            for num_clients, of in by_clients.items()
        ],
    }


def latency_rows(rows, latencies):
    """What a long prompt costs beside each row's other requests, as JSON types."""
    return [
        {
            "name": row.name,
            **latencies[row.name]._asdict(),
            "first_ratio": latencies[row.name].first_ratio,
            "speed_ratio": latencies[row.name].speed_ratio,
        }
        for row in rows
    ]


def num_unlike(document):
    """Answers of ours that are not those of plain decoding with one client."""
    ours = [row for row in document["loads"] if row["engine"] == "coordgen"]
    return sum(of["num_different"] for row in ours for of in row["clients"])


def show(document, threads, parallel):
    """Print the tables.

    Args:
        document: With `loads`, `latencies` and `facts`.
        threads: Compute threads.
        parallel: How many requests are answered at a time.
    """
    loads, latencies = document["loads"], document["latencies"]
    where = f"{threads} thread{'s' * (threads > 1)}, {parallel} answered at a time"
    if loads:
        numbers = [_clients(of["clients"]) for of in loads[0]["clients"]]
        for name, (title, scale, digits) in _TABLES.items():

            def written(at, row, name=name, scale=scale, digits=digits):
                return f"{scale * row['clients'][at]['figures'][name][0]:.{digits}f}"

            columns = {number: partial(written, at) for at, number in enumerate(numbers)}
            show_rows(f"{title}, {where}", loads, {"": "{name}"} | columns)
        counts = {
            number: f"{{clients[{at}][num_different]}}/{{clients[{at}][num_answers]}}"
            for at, number in enumerate(numbers)
        }
        title = f"answers that are not those for {numbers[0]} (of ours: without drafts)"
        show_rows(title, loads, {"": "{name}"} | counts)
    if latencies:
        show_rows(f"a long prompt beside others, {where}", latencies, _LATENCIES)
    for about in dict.fromkeys(facts["about"] for facts in document["facts"].values()):
        print(f"Peer: {about}\n")
    for name, why in document["failures"].items():
        print(f"failed: {name}: {why}")


def draw(rows, path):
    """Draw all rows, by clients; those without drafts are dashed. Raises OSError."""
    by_name = {row["name"]: row for row in rows}

    def reached(name, scale, line):
        return [scale * of["figures"][name][0] for of in by_name[line.label]["clients"]]

    picture.draw(
        path,
        {
            "answers alone, tokens/s of all clients": partial(reached, "decode_tokens_per_s", 1.0),
            "first token, ms, median": partial(reached, "first_p50_s", 1e3),
        },
        [
            picture.Line(name, row["engine"] == "coordgen", not row["drafts"])
            for name, row in by_name.items()
        ],
        [of["clients"] for of in rows[0]["clients"]],
        columns=2,
        size=(3.8, 2.6),
        bottom=0,
        label=("clients", ""),
    )


def _clients(number):
    return f"{number} client{'s' * (number > 1)}"
