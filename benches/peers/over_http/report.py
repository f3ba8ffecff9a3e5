"""What servers did for some numbers of clients: as JSON types, and as tables.

In: loads and latencies by row. Out: rows of figures, each with its median, lowest and highest over
the rounds; tables show nothing that they lack.
"""

from statistics import median

from coordgen_rs.lab.tables import show_table
from over_http.load import Figures, figures_of, num_different

_TABLES = {
    "decode_tokens_per_s": ("answers alone, tokens/s of all clients", 1.0, 1),
    "whole_tokens_per_s": ("whole answers, new tokens/s of all clients, prompts included", 1.0, 1),
    "tokens_per_step": ("tokens per step of a request", 1.0, 2),
    "first_p50_s": ("first token of a whole answer, ms, median", 1e3, 0),
    "first_p95_s": ("first token of a whole answer, ms, 95th percentile", 1e3, 0),
    "answer_p50_s": ("whole answer, ms, median", 1e3, 0),
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
                    name: _summary([getattr(figures_of(load), name) for load in of])
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
    for name, (title, scale, digits) in _TABLES.items():
        if loads:
            heads = ["", *(_clients(of["clients"]) for of in loads[0]["clients"])]
            cells = [
                [row["name"], *(_cell(of["figures"][name], scale, digits) for of in row["clients"])]
                for row in loads
            ]
            show_table(f"{title}, {where}", heads, cells)
    if loads:
        heads = ["", *(_clients(of["clients"]) for of in loads[0]["clients"])]
        cells = [
            [row["name"], *(f"{of['num_different']}/{of['num_answers']}" for of in row["clients"])]
            for row in loads
        ]
        fewest = loads[0]["clients"][0]["clients"]
        title = f"answers that are not those for {_clients(fewest)} (of ours: without drafts)"
        show_table(title, heads, cells)
    if latencies:
        _show_latencies(latencies, where)
    for about in dict.fromkeys(facts["about"] for facts in document["facts"].values()):
        print(f"Peer: {about}\n")
    for name, why in document["failures"].items():
        print(f"failed: {name}: {why}")


def _show_latencies(latencies, where):
    show_table(
        f"a long prompt beside others, {where}",
        [
            "",
            "short request alone, first token, ms",
            "beside, ms",
            "long prompt alone, ms",
            "beside, ms",
            "a stream alone, tokens/s",
            "beside, tokens/s",
        ],
        [
            [
                row["name"],
                *(
                    f"{1e3 * row[name]:.0f}"
                    for name in (
                        *("short_alone_s", "short_beside_s"),
                        *("long_alone_s", "long_beside_s"),
                    )
                ),
                *(f"{row[name]:.1f}" for name in ("alone_tokens_per_s", "beside_tokens_per_s")),
            ]
            for row in latencies
        ],
    )


def _clients(number):
    return f"{number} client{'s' * (number > 1)}"


def _summary(values):
    return [median(values), min(values), max(values)]


def _cell(summary, scale, digits):
    return f"{scale * summary[0]:.{digits}f}"
