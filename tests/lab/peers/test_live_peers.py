"""The live comparison with fake engines: what is measured, marked and told when something fails."""

import json
from pathlib import Path

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import ours
import real
from checkpoints import CHECKPOINTS
from contest import Answer, Contest, ContestantFailedError
from coordgen_rs.convert.families.checkpoint import open_checkpoint
from coordgen_rs.errors import ChatTemplateError
from coordgen_rs.lab.bench.prompts import PromptsError
from coordgen_rs.text.tokenizer import Tokenizer
from fake_engines import open_absent, open_scripted
from live import engines, llama_build
from live.engines import Engine, Row
from live.figures import ALL, LONG, Figures
from live.loops import loops
from live.process import EngineProcess
from live.prompts import (
    Conversation,
    Prompt,
    chat_template,
    check_room,
    encode,
    facts_of,
    of_lengths,
    read_conversations,
    read_recorded,
    shorter,
    spread,
)
from live.report import run_document, show
from live.run import Run
from live.weights import Weights, llama_config

SCHEMA = Path(real.__file__).parent / "live" / "schema.json"


def prompts_of(**lengths):
    return {
        task: [Prompt(f"{task}-{n}", task, np.zeros(n, np.uint32)) for n in of]
        for task, of in lengths.items()
    }


def answers(*decode_s, tokens=None):
    """One a round, of 10 decoded tokens in 5 steps; reading the prompt took a second."""
    said = list(range(11)) if tokens is None else tokens
    return [Answer(said, len(said) - 1, 5, 1.0, seconds) for seconds in decode_s]


@pytest.fixture
def conversations(tmp_path):
    """A folder of two tasks with a prompt each."""
    for task in ("summary", "ui"):
        message = {"role": "user", "content": f"Tell me about {task}."}
        line = {"id": f"{task}-1", "task": task, "messages": [message]}
        (tmp_path / f"{task}.jsonl").write_text(json.dumps(line) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("tokens", "is_loop"),
    [
        ([*range(20), *[7] * 20], True),
        ([*range(10), *[1, 2, 3] * 10], True),
        ([*range(16), *[1, 2, 3, 4, 5, 6, 7, 8] * 2], True),
        ([*[1, 2, 3, 4] * 9, 9, *[1, 2, 3, 4] * 9], True),  # one slip
        ([], False),
        ([7, 7, 7, 7], False),  # too short to tell
        (list(range(64)), False),
        ([*[1, 2] * 16, *range(32)], False),  # it came out of the loop
        ([*range(24), *range(24)], False),  # a copy of its own beginning, once
    ],
)
def test_an_n_gram_said_again_and_again_is_a_loop(tokens, is_loop):
    assert loops(tokens) is is_loop


class TestFigures:
    def test_a_rate_is_a_median_over_rounds_and_all_is_the_geometric_mean_of_tasks(self):
        contest = Contest({"a": {"rag": [answers(1.0, 2.0, 1.0)], "ui": [answers(4.0, 4.0, 40.0)]}})
        rates = Figures(contest, prompts_of(rag=[11], ui=[11])).rates("a", "decode")
        assert rates["rag"] == pytest.approx((10, 5, 10))
        assert rates["ui"] == pytest.approx((2.5, 0.25, 2.5))
        # 5, 3.54 and 1.58 in the three rounds
        assert rates[ALL] == pytest.approx((12.5**0.5, 2.5**0.5, 5))

    def test_ratios_are_taken_within_a_round(self):
        slow_round = Contest(
            {"a": {"rag": [answers(1, 50, 1)]}, "b": {"rag": [answers(2, 100, 3)]}}
        )
        ratios = Figures(slow_round, prompts_of(rag=[11])).ratios("a", "b", "decode")
        assert ratios["rag"] == pytest.approx((2, 2, 3))

    def test_measures_count_what_an_engine_did(self):
        reads_all = Answer([1, 2, 3], 2, 2, 1.0, 1.0)  # its first token comes with the prompt
        decodes_all = Answer([1, 2, 3], 3, 1, 1.0, 1.0)
        contest = Contest({"a": {"rag": [[reads_all]]}, "b": {"rag": [[decodes_all]]}})
        figures = Figures(contest, prompts_of(rag=[10]))
        medians = {
            name: [
                figures.rates(name, measure)[ALL].median
                for measure in ("prefill", "decode", "answer", "tokens_per_step")
            ]
            for name in "ab"
        }
        assert medians["a"] == pytest.approx([10, 2, 1.5, 1])
        assert medians["b"] == pytest.approx([9, 3, 1.5, 3])

    def test_long_prompts_are_a_group_of_their_own(self):
        contest = Contest({"a": {"rag": [answers(1.0), answers(2.0)]}})
        figures = Figures(contest, prompts_of(rag=[100, 3000]))
        assert figures.rates("a", "decode")[LONG].median == pytest.approx(5)
        assert figures.rates("a", "decode")[ALL].median == pytest.approx(20 / 3)

    def test_answers_that_loop_are_marked_and_can_be_left_out(self):
        looping = answers(1.0, tokens=[5] * 21)
        contest = Contest({"a": {"rag": [looping, answers(5.0)], "ui": [looping]}})
        figures = Figures(contest, prompts_of(rag=[9, 9], ui=[9]))
        assert figures.looping["a"] == {("rag", 0), ("ui", 0)}
        rates = figures.rates("a", "decode", figures.looping["a"])
        assert rates["rag"].median == rates[ALL].median == pytest.approx(2)
        assert rates["ui"] is None

    def test_answers_unlike_plain_decoding_are_counted(self):
        contest = Contest(
            {
                "a": {"rag": [answers(1.0), answers(1.0)]},
                "b": {"rag": [answers(1.0), answers(1.0, tokens=[3, 4])]},
            }
        )
        assert Figures(contest, prompts_of(rag=[9, 9])).num_unlike("b", "a") == 1


class TestProcess:
    def test_contestants_answer_from_their_process(self, tmp_path):
        process = EngineProcess(open_scripted, {"kinds": {"x": 2.0}}, tmp_path / "log")
        contestant = process.contestant("x", "a")
        contestant.begin()
        answer = contestant.answer(np.zeros(4, np.uint32), 3)
        process.close()
        assert answer == Answer([100, 101, 102], 2, 2, 0.5, 2.0)
        assert "a round begins" in (tmp_path / "log").read_text()

    @pytest.mark.parametrize(
        ("how", "why"),
        [
            ("raise", "ValueError: no more"),
            ("exit", "its process ended with 3: out of luck"),
            ("sleep", "no answer within 1 s"),
        ],
    )
    def test_a_failure_is_told(self, how, why, tmp_path):
        options = {"kinds": {"x": 1.0}, "fails_at": 0, "how": how}
        process = EngineProcess(open_scripted, options, tmp_path / "log")
        if how == "sleep":  # what answers may take its time
            process.limit_s = 1
        with pytest.raises(ContestantFailedError, match=why):
            process.contestant("x", "a").answer(np.zeros(1, np.uint32), 1)
        process.close()

    def test_an_absent_package_is_named(self, tmp_path):
        with pytest.raises(ContestantFailedError, match="llama: pip install --group peers"):
            EngineProcess(open_absent, {}, tmp_path / "log")


class TestPrompts:
    def test_a_limit_takes_lines_from_the_whole_file(self):
        assert spread(list(range(12)), 4) == [0, 4, 7, 11]
        assert spread([1, 2, 3], 1) == [1]
        assert spread([1, 2], 4) == [1, 2]

    def test_conversations_are_read_by_task(self, conversations):
        read = read_conversations(conversations)
        assert [(one.id, one.task) for one in read] == [("summary-1", "summary"), ("ui-1", "ui")]
        assert read[0].messages == [{"role": "user", "content": "Tell me about summary."}]

    def test_recorded_requests_keep_their_turns_and_lose_their_answers(self, tmp_path):
        turns = [{"user": "Hello", "assistant": "Yes?"}]
        record = {"id": "7", "task": "reply", "prompt": "Why?", "output": "So.", "history": turns}
        other = record | {"id": "8", "task": "tool_call"}
        lines = "\n".join(map(json.dumps, (record, other)))
        (tmp_path / "reply_taubench_gpt4o.jsonl").write_text(lines)
        (conversation,) = read_recorded(tmp_path)
        roles = [message["role"] for message in conversation.messages]
        assert roles == ["user", "assistant", "user"]
        assert "So." not in str(conversation)

    def test_a_folder_without_prompts_and_a_line_without_messages_are_refused(self, conversations):
        (conversations / "ui.jsonl").write_text('{"id": "u", "task": "ui"}')
        with pytest.raises(PromptsError, match=r"ui\.jsonl, line 1 has no field messages"):
            read_conversations(conversations)
        for path in conversations.glob("*.jsonl"):
            path.unlink()
        with pytest.raises(PromptsError, match=r"holds none of summary\.jsonl"):
            read_conversations(conversations)

    def test_longer_prompts_are_left_out_and_counted(self, capsys) -> None:
        prompts = shorter(prompts_of(rag=[9], ui=[3, 21]), 8)
        assert "2 longer prompts are left out" in capsys.readouterr().err
        assert [(task, [len(p.token_ids) for p in of]) for task, of in prompts.items()] == [
            ("ui", [3])
        ]
        with pytest.raises(PromptsError, match="no prompt is left"):
            check_room({}, 8, "")
        with pytest.raises(PromptsError, match="ui-21 has 21 tokens, room is for 20: export"):
            check_room(prompts_of(ui=[3, 21]), 20, "export again")

    def test_prompts_are_the_rendered_text_and_nothing_more(self):
        tokenizer = Tokenizer(CHECKPOINTS["embedded"] / "tokenizer.json")
        one = Conversation("ui-1", "ui", [{"role": "user", "content": "the mill"}])
        prompts = encode([one], lambda messages: messages[0]["content"], tokenizer)
        assert tokenizer.decode(prompts["ui"][0].token_ids) == "the mill"

    def test_pieces_to_read_have_their_length_and_share_nothing(self):
        prompts = {
            "rag": [Prompt("r", "rag", np.arange(5))],
            "ui": [Prompt("u", "ui", np.arange(5, 9))],
        }
        pieces = of_lengths(prompts, [3, 6])
        assert {name: of[0].token_ids.tolist() for name, of in pieces.items()} == {
            "3 tokens": [0, 1, 2],
            "6 tokens": [3, 4, 5, 6, 7, 8],
        }
        with pytest.raises(PromptsError, match="prompts of 9 tokens hold no pieces of 10"):
            of_lengths(prompts, [3, 7])

    def test_a_digest_tells_prompts_apart(self) -> None:
        hashes = [facts_of(prompts_of(rag=of))["sha256"] for of in ([3, 4], [4, 3])]
        assert hashes[0] != hashes[1]

    def test_a_file_without_a_template_is_refused(self, tmp_path):
        gguf = pytest.importorskip("gguf", reason="gguf is not installed")
        for template in (None, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"):
            path = tmp_path / f"{bool(template)}.gguf"
            writer = gguf.GGUFWriter(path, "llama")
            if template:
                writer.add_chat_template(template)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.close()
        with pytest.raises(ChatTemplateError, match="no chat template"):
            chat_template(tmp_path / "False.gguf")
        render = chat_template(tmp_path / "True.gguf")
        assert render([{"role": "user", "content": "Hi"}]) == "<user>Hi"


class TestWeights:
    def test_what_is_there_is_not_made_again(self, tmp_path):
        (tmp_path / "m.gguf").write_bytes(b"weights")
        weights = Weights(tmp_path / "m.gguf", tmp_path)
        (place,) = tmp_path.glob("m-*")
        (place / "genai-int4").mkdir()
        assert weights.genai("int4") == place / "genai-int4"

    def test_what_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "m.gguf").write_bytes(b"weights")
        with pytest.raises(ContestantFailedError, match="hugging-face cannot be made: "):
            Weights(tmp_path / "m.gguf", tmp_path).hugging_face()
        assert not list(tmp_path.glob("m-*/hugging-face"))

    def test_a_configuration_is_read_again_as_it_was(self, tmp_path):
        config = open_checkpoint(CHECKPOINTS["embedded"]).config
        (tmp_path / "config.json").write_text(json.dumps(llama_config(config)))
        (tmp_path / "model.safetensors").symlink_to(CHECKPOINTS["embedded"] / "model.safetensors")
        again = open_checkpoint(tmp_path).config
        assert again.inv_freq == pytest.approx(config.inv_freq)
        assert again == type(config)(**(vars(config) | {"inv_freq": again.inv_freq}))


class TestOurs:
    def test_forbidden_end_tokens_leave_full_answers_that_drafts_do_not_change(
        self, bundle_of, session_of
    ):
        session = session_of("embedded", "fp32")
        opened = ours.open_engine(bundle_of("embedded", "fp32"), session.threads, False)
        prompt = Tokenizer.of(session.bundle).encode("The mill is old.\nSummary:\n")
        plain, auto = (one.answer(prompt, 40) for one in opened.contestants.values())
        assert plain.tokens == auto.tokens
        assert len(plain.tokens) == plain.decoded == plain.steps == 40
        assert auto.steps < 40
        assert not {*plain.tokens} & {*session.end_token_ids}


def row(name, kind="plain", engine="GenAI", weights="int4"):
    return Row(name, kind, engine, weights, kind != "plain")


OURS = [
    row("coordgen b plain", "plain", "coordgen", "b"),
    row("coordgen b auto", "auto", "coordgen", "b"),
]
GENAI = [row("GenAI int4 plain"), row("GenAI int4 n-gram", "n-gram")]
LOOP = row("llama.cpp loop Q4_1 plain", "plain", "llama.cpp", "Q4_1")
SERVER = row("llama.cpp Q4_1 plain", "plain", "llama.cpp", "Q4_1")


def scripted(*rows, **options):
    kinds = {row.kind: 0.5 if row.drafts else 1.0 for row in rows}
    return Engine(list(rows), open_scripted, {"kinds": kinds, **options})


def timed(seconds):
    """One answer to one prompt by each contestant."""
    return Contest({name: {"rag": [answers(of)]} for name, of in seconds.items()})


def document_of(rows, contest, *lengths):
    run = Run(1, rows, {row.name: {} for row in rows}, contest, {})
    return run_document(run, prompts_of(rag=list(lengths)))


@pytest.fixture
def fakes(monkeypatch):
    """Ours and GenAI answer, llama.cpp's server ends at its second answer, its loop is absent."""
    theirs = scripted(*GENAI, tokens=[*range(5), *[8] * 30], about="scripted 1.0")
    llama_cpp = [Engine([LOOP], open_absent, {}), scripted(SERVER, fails_at=1, how="exit")]
    monkeypatch.setattr(engines, "ours", lambda *_: [scripted(*OURS)])
    monkeypatch.setattr(engines, "llama_cpp", lambda *_: llama_cpp)
    monkeypatch.setattr(engines, "genai_folders", lambda *_: [theirs])
    monkeypatch.setattr(real, "chat_template", lambda gguf: lambda messages: messages[0]["content"])


@pytest.fixture
def arguments(fakes, bundle_of, conversations, tmp_path):
    """Those of a quick run with fakes; the tokenizer is a bundle's, and the GGUF file no one's."""
    (tmp_path / "m.Q4_1.gguf").write_bytes(b"weights")
    return [
        str(tmp_path / "m.Q4_1.gguf"),
        str(bundle_of("embedded", "fp32")),
        *("--prompts", str(conversations), "--work", str(tmp_path / "work"), "--peers"),
        *("--threads", "1", "--rounds", "2", "--max-new-tokens", "24", "--read", "3", "8"),
        *("--json", str(tmp_path / "figures.json")),
    ]


def test_what_fails_is_named_and_the_others_are_reported(arguments, tmp_path, capsys):
    assert real.main(arguments) == 1
    document = json.loads((tmp_path / "figures.json").read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(document)
    (run,) = document["runs"]
    rows = {row["name"]: row for row in run["rows"]}
    assert list(rows) == [one.name for one in OURS + GENAI]
    assert "pip install --group peers" in run["failures"]["llama.cpp loop Q4_1 plain"]
    assert "out of luck" in run["failures"]["llama.cpp Q4_1 plain"]
    assert rows["coordgen b auto"]["rates"]["decode"][ALL] == pytest.approx([46, 46, 46])
    assert (
        rows["coordgen b auto"]["num_unlike_plain"] == rows["coordgen b auto"]["num_looping"] == 0
    )
    assert rows["GenAI int4 n-gram"]["num_looping"] == 2
    assert rows["GenAI int4 n-gram"]["rates_without_loops"]["decode"][ALL] is None
    compared = {(one["kind"], one["name"], one["other"]): one for one in run["comparisons"]}
    assert list(compared) == [
        ("own plain", "coordgen b auto", "coordgen b plain"),
        ("own plain", "GenAI int4 n-gram", "GenAI int4 plain"),
        ("plain", "coordgen b plain", "GenAI int4 plain"),
        ("drafting", "coordgen b auto", "GenAI int4 n-gram"),
        ("best", "coordgen b auto", "GenAI int4 n-gram"),
    ]
    ratios = compared["own plain", "coordgen b auto", "coordgen b plain"]["ratios"]
    assert ratios["decode"][ALL] == pytest.approx([2, 2, 2])
    said = capsys.readouterr().out
    assert "failed: llama.cpp Q4_1 plain: its process ended with 3: out of luck" in said
    assert "decoding, tokens/s, 1 thread" in said
    assert names_below(said, "in short, all tasks, 1 thread") == [*rows]
    plain = [name for name, row in rows.items() if not row["drafts"]]
    assert names_below(said, "prompt speed, tokens/s, 1 thread") == plain
    assert {row["name"]: row["rates"] for row in run["reading"]} == {
        name: {"3 tokens": [6, 6, 6], "8 tokens": [16, 16, 16]} for name in plain
    }
    assert said.count("Peer: ") == said.count("Peer: scripted 1.0\n") == 1


def names_below(said, title):
    """First cells of the table below a title."""
    table = said.partition(f"{title}\n\n")[2].partition("\n\n")[0]
    return [line.split("|")[1].strip() for line in table.splitlines()[2:]]


def test_llama_cpp_is_told_once_where_it_is_not_built(arguments, tmp_path, capsys):
    nowhere = tmp_path / "nowhere"
    only = ["--peers", "llama.cpp", "--llama-cpp", str(nowhere), "--rows", "^coordgen"]
    assert real.main([*arguments, *only]) == 1
    (run,) = json.loads((tmp_path / "figures.json").read_text())["runs"]
    why = f"there is no {nowhere}/llama-server: `make peers` builds it"
    assert run["failures"] == {"llama.cpp": why}
    assert f"failed: llama.cpp: {why}" in capsys.readouterr().out


def test_in_short_a_peer_has_its_plain_decoding_and_its_best_drafting(capsys):
    rows = [
        row("ours plain", "plain", "coordgen", "b"),
        row("ours auto", "auto", "coordgen", "b"),
        row("x plain"),
        row("x slow", "n-gram"),
        row("x quick", "n-gram 2"),
    ]
    seconds = {"ours plain": 1.0, "ours auto": 0.5, "x plain": 1.0, "x slow": 3.0, "x quick": 0.8}
    show(document_of(rows, timed(seconds), 5), 1)
    in_short, _, rest = capsys.readouterr().out.partition(
        "reading the prompt, tokens/s, 1 thread\n"
    )
    shown = [name for name in seconds if f"| {name}" in in_short]
    assert shown == ["ours plain", "ours auto", "x plain", "x quick"]
    assert "| x slow" in rest


def test_rows_without_loops_are_timed_on_the_same_prompts(capsys):
    rows = [row("ours", "auto", "coordgen", "b"), row("x", "n-gram")]
    loop, other = [7] * 24, list(range(24))
    said = {"ours": (loop, other, other), "x": (other, loop, other)}
    contest = Contest(
        {
            name: {"rag": [answers(s, tokens=of) for s, of in zip((1, 10, 2), texts, strict=True)]}
            for name, texts in said.items()
        }
    )
    run = document_of(rows, contest, 5, 6, 7)
    left = [one["rates_without_loops"]["decode"][ALL].median for one in run["rows"]]
    assert left == [pytest.approx(23 / 2)] * 2
    assert [one["num_looping"] for one in run["rows"]] == [1, 1]
    assert {one["num_looping"] for one in run["comparisons"]} == {2}
    show(run, 3)
    assert "the 1 of 3 prompts on which no answer loops" in capsys.readouterr().out


@pytest.mark.parametrize(("seconds", "has_ranges"), [((1.0,), False), ((1.0, 2.0), True)])
def test_one_round_has_no_range(capsys, seconds, has_ranges):
    rows = [row("ours", "plain", "coordgen", "b"), row("x")]
    contest = Contest({one.name: {"rag": [answers(*seconds)]} for one in rows})
    show(document_of(rows, contest, 5), 1)
    assert ("lowest..highest" in capsys.readouterr().out) is has_ranges


def test_the_best_of_an_engine_may_be_without_drafts():
    rows = [
        row("x plain"),
        row("x drafting", "n-gram"),
        row("y drafting", "n-gram", weights="fp32"),
        row("ours", "auto", "coordgen", "b"),
    ]
    seconds = {"x plain": 1.0, "x drafting": 2.0, "y drafting": 4.0, "ours": 1.0}
    compared = [
        (one["kind"], one["other"], one["ratios"]["decode"][ALL].median)
        for one in document_of(rows, timed(seconds), 9)["comparisons"]
        if one["name"] == "ours"
    ]
    assert compared == [
        ("drafting", "x drafting", pytest.approx(2)),
        ("drafting", "y drafting", pytest.approx(4)),
        ("best", "x plain", pytest.approx(1)),
        ("best", "y drafting", pytest.approx(4)),
    ]


def test_rows_can_be_chosen_and_prompts_are_only_read_where_that_is_asked_for(arguments, tmp_path):
    assert real.main([*arguments, "--rows", "^GenAI .* plain", "--read"]) == 0
    (run,) = json.loads((tmp_path / "figures.json").read_text())["runs"]
    assert [row["name"] for row in run["rows"]] == ["GenAI int4 plain"]
    assert run["comparisons"] == run["reading"] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--rounds", "0"], "--rounds is 0, but must be at least 1"),
        (["--rows", "("], "is no regular expression"),
        (["--prompts", "nowhere"], "nowhere holds none of"),
        (["--max-prompt-tokens", "1"], "no prompt is left"),
        (["--read", "9999"], "hold no pieces of 9999: give shorter --read"),
    ],
)
def test_wrong_options_are_one_line(wrong, said, arguments, capsys):
    assert real.main([*arguments, *wrong]) == 2
    assert said in capsys.readouterr().err


def test_a_gguf_file_is_run_as_it_is_where_no_bundle_is_given(arguments, tmp_path, monkeypatch):
    pytest.importorskip("gguf", reason="gguf is not installed")
    from gguf_files import write_gguf

    file = write_gguf(tmp_path / "m.Q8_0.gguf", CHECKPOINTS["embedded-draft"], "Q8_0")
    ran: list[object] = []

    def with_ours(bundles, *_):
        ran.extend(bundles)
        return [scripted(row("coordgen Q8_0 plain", "plain", "coordgen", "Q8_0"))]

    monkeypatch.setattr(engines, "ours", with_ours)
    monkeypatch.setattr(engines, "llama_cpp", lambda files, *_: ran.append(files) or [])
    monkeypatch.setattr(engines, "llama_cpp_benches", lambda *_: [])
    monkeypatch.setattr(engines, "genai_folders", lambda *_: [])
    monkeypatch.setattr(llama_build, "program", lambda programs, name: programs / name)
    assert real.main([str(file), *arguments[2:], "--peers", "llama.cpp"]) == 0
    assert ran[:2] == [file, {"Q8_0": file}]


def test_bundles_of_different_models_are_refused(arguments, bundle_of, capsys):
    other = str(bundle_of("stories260K", "fp32"))
    assert real.main([arguments[0], other, *arguments[1:]]) == 2
    assert "different tokenizers" in capsys.readouterr().err


def test_the_real_engines_have_rows_of_their_own():
    files = {"Q4_1": Path("a.gguf"), "Q4_0": Path("b.gguf")}
    folders = {"int4": Path("i"), "fp32": Path("f")}
    every = [
        *engines.ours([Path("kept"), Path("m.Q4_0.gguf")], 1, False),
        *engines.llama_cpp(files, 1, False, Path("programs"), Path("logs")),
        *engines.llama_cpp_benches(files, 1, Path("programs")),
        *engines.genai_folders(folders, 1, False),
    ]
    names = [row.name for engine in every for row in engine.rows]
    assert len(names) == len({*names}) == 4 + 20 + 8
    assert {"coordgen kept plain", "coordgen Q4_0 auto"} < {*names}
    theirs = [row for engine in every for row in engine.rows if row.engine == "llama.cpp"]
    assert {row.weights for row in theirs} == {"Q4_1", "Q4_0"}
