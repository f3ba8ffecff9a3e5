"""`coordgen verify` on servers that are wrong on purpose: each fault is found, none is invented."""

import json
import re
import socket

import pytest

import coordgen_rs.lab.verify.command as command
from coordgen_rs.lab.verify.server import (
    OURS,
    AnswerError,
    Sampling,
    find_server,
    parse_address,
    read_questions,
)
from wrong_servers import answering

_EVENTS, _SLOW = "not a stream of events", "no end of the answer within"
HOSTILE = {
    "hangs": (_SLOW, _SLOW),
    "too short": ("84 bytes before its Content-Length", "84 bytes before its Content-Length"),
    "too long": (_EVENTS, "not valid JSON"),
    "invalid chunk": ("within a chunk", "within a chunk"),
    "bad utf8": ("not UTF-8: byte 0xff at 0", "not UTF-8: byte 0xff at 23"),
    "status 500": ("status 500: out of", "status 500: out of"),
    "no json": (_EVENTS, "not valid JSON"),
    "deep json": (_EVENTS, "more than 100 lists"),
    "redirect": ("302: it redirects to http://", "302: it redirects to http://"),
    "endless": ("longer than 1,000,000 bytes", "longer than 1,000,000 bytes"),
    "slow drip": (_SLOW, _SLOW),
    "slow head": (_SLOW, _SLOW),
    "not http": ("not an answer of HTTP", "not an answer of HTTP"),
    "no end": ("without a finish_reason", "not valid JSON"),
    "wrong types": (_EVENTS, "content is no string"),
}
"""Faults, and what is told of a stream and of a whole answer."""

SHORT = ("--limit", "1", "--max-tokens", "24")
OTHER_FIELDS = ("--plain-fields", '{"a": 1}')
SAME = "no verdict on drafts: every answer was the same, but"


@pytest.fixture
def report(coordgen):
    def run(url, *options, code):
        printed = coordgen("verify", url, "--json", *options, code=code)
        assert printed.err == ""
        told = json.loads(printed.out)
        assert told["exit_code"] == code
        return told

    return run


def parted(told):
    """The findings that are not exact."""
    return [one for one in told["findings"] if one["status"] != "exact"]


def test_a_server_that_is_right_passes_all_our_questions(report):
    with answering() as url:
        told = report(url, code=0)
    assert told["verdict"] == "exact"
    assert told["counts"] == {"exact": told["to_ask"]}
    assert told["server"]["version"] == "fake-1"
    assert told["with_drafts"]["num_accepted"] > 0
    assert told["without_drafts"]["num_drafted"] is None


@pytest.mark.parametrize(
    ("fault", "options", "parts", "ways"),
    [
        ("one token in a thousand", (), {"content", "arguments of tool call 1"}, "with drafts"),
        ("one call in fifty", (), {"arguments of tool call 1"}, "with drafts"),
        ("another stream", SHORT, {"content"}, "streamed"),
        ("other draws", SHORT, {"content", "arguments of tool call 1"}, "with drafts"),
        ("other finish reason", SHORT, {"finish reason"}, "with drafts"),
    ],
)
def test_each_fault_is_found_and_told_for_what_it_is(report, fault, options, parts, ways):
    with answering(fault) as url:
        told = report(url, *options, code=1)
    found = parted(told)
    assert {one["status"] for one in found} == {"differs"}
    assert {one["difference"]["part"] for one in found} == parts
    assert all(ways in one["way"] for one in found)
    if fault == "other draws":
        assert {one["sampling"] for one in found} == {"seed 1"}
        assert len(found) == told["to_ask"] / 2
    if fault == "one call in fifty":
        assert {one["kind"] for one in found} == {"tools"}
        assert all("no JSON object" in one["why"] for one in found)


def test_a_server_that_differs_from_itself_gets_no_verdict(report):
    with answering("noise") as url:
        told = report(url, "--only", "copy", "--repeats", "9", code=3)
    assert told["counts"]["noise"] > 6
    assert told["counts"].keys() <= {"noise", "exact"}


def test_a_near_tie_is_told_apart_where_probabilities_are_to_be_had(report):
    with answering("near tie") as url:
        told = report(url, "--only", "chat", "--seeds", "none", code=1)
    assert told["counts"] == {"near tie": 5}
    assert {round(one["gap_nats"], 3) for one in told["findings"]} == {0.02}


@pytest.mark.parametrize(("fault", "options"), [("drafts stay on", ()), (None, OTHER_FIELDS)])
def test_drafts_that_stay_on_are_not_taken_for_plain_decoding(report, fault, options):
    with answering(fault) as url:
        told = report(url, *SHORT, *options, code=3)
    assert told["verdict"] == "not compared"
    assert told["without_drafts"]["num_drafted"] > 0


def test_an_unknown_server_needs_another_that_is_plain(report):
    with answering(owner="someone") as url, answering(has_drafts=False) as plain:
        assert report(url, *SHORT, code=3)["verdict"] == "not compared"
        with answering(owner="someone") as drafting:
            told = report(url, *SHORT, "--plain-url", drafting, code=3)
            assert told["without_drafts"]["num_drafted"]
        told = report(url, *SHORT, "--plain-url", plain, code=0)
    assert (told["plain"]["url"], told["verdict"]) == (f"{plain}/v1", "exact")


@pytest.mark.parametrize(
    ("fault", "server", "options", "code", "said"),
    [
        ("tells nothing", {"owner": "coordgen"}, SHORT, 3, SAME),
        (None, {"owner": "coordgen", "has_drafts": False}, (*SHORT, *OTHER_FIELDS), 3, SAME),
        (None, {"owner": "someone"}, SHORT, 3, "answers with them and without were not to be had"),
        ("says nothing", {}, ("--only", "chat", "--seeds", "none"), 4, "no answer says anything"),
        ("never loaded", {}, ("--timeout", "1"), 4, "after 1 s it still says: the model is being"),
    ],
)
def test_why_there_is_no_verdict_is_told(coordgen, fault, server, options, code, said):
    with answering(fault, **server) as url:
        printed = coordgen("verify", url, *options, code=code).out
    assert said in printed
    assert (SAME in printed) == (said == SAME), "what was never asked is not called the same"


def test_drafts_that_are_counted_as_openai_counts_them_are_read(report):
    with answering("as openai tells") as url:
        told = report(url, *SHORT, code=0)
    drafted, plain = told["with_drafts"], told["without_drafts"]
    assert drafted["num_drafted"] == 2 * drafted["num_accepted"] > 0
    assert plain["num_drafted"] is None


def test_of_two_servers_it_is_believed_that_one_has_no_drafts(coordgen):
    with answering("tells nothing") as url, answering("tells nothing") as plain:
        printed = coordgen("verify", url, *SHORT, "--plain-url", plain, code=0)
        said = coordgen("verify", url, *SHORT, "--plain-url", url, code=2)
    assert "neither server tells its drafts: that only one had some is believed" in printed.out
    assert "--plain-url is URL itself" in said.err


def test_a_failure_does_not_hide_a_difference_that_is_known_already(report):
    with answering("plain fails") as url:
        told = report(url, *SHORT, "--only", "chat", "--seeds", "none", code=1)
    (finding,) = told["findings"]
    assert finding["status"] == "differs"
    assert finding["way"] == "with drafts, streamed"
    assert "status 500" in finding["why"]


@pytest.mark.parametrize("fault", ["byte order mark", "carriage returns"])
def test_streams_in_other_legal_forms_are_read(report, fault):
    with answering(fault) as url:
        assert report(url, "--only", "chat", "--seeds", "none", code=0)["verdict"] == "exact"


def test_figures_out_of_bounds_are_left_out(report):
    with answering("huge figures") as url:
        told = report(url, *SHORT, "--seeds", "none", code=0)
    assert told["with_drafts"]["tokens_per_s"] is None


def test_markdown_holds_nothing_live_of_what_a_server_says(coordgen):
    name = "![x](http://example.org/p.png) <img src=x> @someone ```"
    with answering(model=name) as url:
        printed = coordgen("verify", url, *SHORT, "--markdown", code=0)
    fenced = re.findall(r"```text\n(.*?)\n```", printed.out, flags=re.DOTALL)
    assert "![x]" in fenced[0]
    assert printed.out.count("![x]") == 1
    assert "```\n" not in fenced[0]


@pytest.mark.parametrize(
    ("fault", "form"),
    [
        (fault, form)
        for fault in HOSTILE
        for form in ("streamed", "whole")
        if form == "whole" or fault not in ("hangs", "slow head")  # before any form is seen
    ],
)
def test_what_a_hostile_server_does_is_told(monkeypatch, fault, form):
    monkeypatch.setattr("coordgen_rs.lab.verify.server.MOST_BYTES", 1_000_000)
    told = HOSTILE[fault][form == "whole"]
    with answering(fault) as url:
        address = parse_address("URL", url, None, 1 if told == _SLOW else 600)
        server = find_server(address, None)
        with pytest.raises(AnswerError, match=told):
            server.ask(read_questions()[0], Sampling(), form)


@pytest.mark.parametrize(
    ("fault", "form"),
    [
        *((fault, "--json") for fault in ("hangs", "status 500", "endless", "wrong types")),
        ("not http", "--markdown"),
        ("redirect", None),
    ],
)
def test_a_hostile_server_gets_a_report(coordgen, monkeypatch, fault, form):
    monkeypatch.setattr("coordgen_rs.lab.verify.server.MOST_BYTES", 1_000_000)
    with answering(fault) as url:
        timeout = ("--timeout", "1") if HOSTILE[fault][0] == _SLOW else ()
        given = ("verify", url, "--only", "chat", "--seeds", "none", *timeout)
        printed = coordgen(*given, *([form] if form else []), code=4)
    assert printed.err == ""
    assert HOSTILE[fault][0] in printed.out
    assert "Traceback" not in printed.out
    assert "\x1b" not in printed.out
    if form == "--json":
        told = json.loads(printed.out)
        assert told["asked"] == 3, "no more is asked after three failures"


@pytest.mark.parametrize("fault", ["loading", "unavailable"])
def test_a_server_that_is_loading_its_model_is_waited_for(report, fault):
    with answering(fault) as url:
        told = report(url, "--only", "chat", code=0)
    assert told["verdict"] == "exact"


def test_a_server_that_is_not_there_gets_a_report(coordgen):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        printed = coordgen("verify", f"http://127.0.0.1:{port}", code=4)
    assert "cannot be asked" in printed.out


def test_an_interruption_prints_the_report_so_far(coordgen, monkeypatch):
    examine = command.examine

    def interrupted(*given, **effort):
        for number, finding in enumerate(examine(*given, **effort)):
            if number == 2:
                raise KeyboardInterrupt
            yield finding

    monkeypatch.setattr(command, "examine", interrupted)
    with answering() as url:
        told = json.loads(coordgen("verify", url, *SHORT, "--json", code=130).out)
    assert (told["verdict"], told["asked"]) == ("interrupted", 2)
    assert told["interrupted"]


def test_text_and_markdown_show_the_first_difference_in_its_context(coordgen):
    with answering("near tie") as url:
        text = coordgen("verify", url, *SHORT, "--api-key", "s3cret", code=1).out
        given = ("verify", url, *SHORT, "--api-key", "s3cret", "--markdown")
        markdown = coordgen(*given, code=1).out
    for shown in (text, markdown):
        assert 'expected: "' in shown
        assert "tokens accepted" in shown
        assert "s3cret" not in shown
    assert markdown.startswith("**differs")
    assert f"```sh\ncoordgen verify {url} --limit 1 --max-tokens 24 --markdown\n```" in markdown
    assert markdown.count("```") % 2 == 0


def test_own_questions_are_asked(report, tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "a"}\n{"messages": [{"role": "user", "content": "b"}]}\n')
    with answering() as url:
        told = report(url, "--prompts", path, code=0)
    assert [one["question"] for one in told["findings"][::2]] == ["line 1", "line 2"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[]", "is no object"),
        ("{}", "either messages or prompt"),
        ('{"prompt": 3}', "prompt is 3"),
        ('{"prompt": "a", "extra": 1}', "unknown field"),
        ('{"prompt": "a", "times": 0}', "times"),
        ("", "holds no questions"),
    ],
)
def test_a_file_without_questions_is_refused(coordgen, tmp_path, line, said):
    path = tmp_path / "own.jsonl"
    path.write_text(line)
    assert said in coordgen("verify", "http://127.0.0.1:1", "--prompts", path, code=2).err


def test_our_questions_have_names_of_their_own_and_all_kinds():
    questions = read_questions(OURS)
    assert len({question.name for question in questions}) == len(questions) > 30
    kinds = {"chat", "edit", "json", "tools", "copy", "languages", "unicode"}
    assert {question.kind for question in questions} == kinds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ftp://a"], "is no URL"),
        (["http://u:p@a"], "no user name"),
        (["http://a", "--only", "riddles"], "--only"),
        (["http://a", "--plain-fields", "[]"], "JSON object"),
        (["http://a", "--seeds", "x"], "--seeds"),
        (["http://a", "--plain-api-key", "x"], "needs --plain-url"),
    ],
)
def test_wrong_use_is_one_line(coordgen, words, said):
    told = coordgen("verify", *words, code=2).err
    assert said in told
    assert told.count("\n") == 1
