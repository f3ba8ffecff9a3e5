"""`coordgen bench`: all sections in one run, a document that its schema takes, clear errors."""

import copy
import io
import json
import subprocess
from contextlib import redirect_stdout
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator, ValidationError

from checkpoints import CHECKPOINTS
from command_line import MODULE
from coordgen_rs._core import draft_method, draft_sources
from coordgen_rs.cli.main import main
from coordgen_rs.convert import export_checkpoint
from coordgen_rs.errors import ChatTemplateError, OptionError
from coordgen_rs.generation.drafting.draft_model import DraftModel
from coordgen_rs.generation.drafting.drafter import METHODS
from coordgen_rs.lab.bench.command import QUICK, BenchCell
from coordgen_rs.lab.bench.drafting import (
    ADDS,
    DRAW_ON_EARLIER,
    drafters_of,
    measure_methods,
    measure_sources,
)
from coordgen_rs.lab.bench.energy_and_memory import NO_SOURCE, measure_energy
from coordgen_rs.lab.bench.latency import PARTS, measure_breakdown
from coordgen_rs.lab.bench.prompts import (
    Prompt,
    PromptsError,
    encode_prompts,
    read_prompts,
)
from coordgen_rs.lab.bench.sections import SECTIONS, chosen_sections, schema
from coordgen_rs.lab.bench.switching import VARIANTS
from coordgen_rs.lab.bench.workbench import (
    MTP,
    PAPER_METHODS,
    STRATEGIES,
    NotLosslessError,
    Settings,
    Workbench,
    needs_draft_model,
)
from coordgen_rs.lab.replay.cells import key_of
from coordgen_rs.loading.session import open_session
from coordgen_rs.text.tokenizer import Tokenizer
from prompts import PROMPTS

TINY = ("--repeats", 1, "--max-new-tokens", 8, "--prompt-len", 40)


@pytest.fixture(scope="module")
def whole_run(bundle_of, tmp_path_factory):
    """One run of all sections: what was printed, the document, and the folder of plots."""
    folder = tmp_path_factory.mktemp("bench")
    data = folder / "prompts.jsonl"
    data.write_text("\n".join(json.dumps(prompt._asdict()) for prompt in PROMPTS))
    report, plots = folder / "bench.json", folder / "plots"
    command = ["bench", bundle_of("embedded", "fp32"), data, *TINY]
    command += ["--json", report, "--plots", plots]
    with redirect_stdout(io.StringIO()) as told:
        assert main([str(part) for part in command]) == 0
    return told.getvalue(), json.loads(report.read_text()), plots


@pytest.fixture
def document(whole_run):
    return whole_run[1]


def rows(document, section, **where):
    return [
        row
        for row in document["sections"][section]["rows"]
        if all(row[name] == value for name, value in where.items())
    ]


def test_the_document_of_a_whole_run_fits_its_schema(document):
    Draft202012Validator.check_schema(schema())
    Draft202012Validator(schema()).validate(document)
    assert list(document["sections"]) == [name for name in SECTIONS if name != "edgellm"]
    assert document["is_complete"]
    described = schema()["properties"]["sections"]["properties"]
    assert list(described) == list(SECTIONS)
    for name, section in document["sections"].items():
        columns = described[name]["properties"]["rows"]["items"]
        assert list(columns["properties"]) == list(section["units"]) == columns["required"]


def damage(document, *path, value=None):
    """A copy with a value of a path replaced, or left out where none is given."""
    damaged = copy.deepcopy(document)
    *way, last = path
    place = damaged
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return damaged


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("condition",), None),
        (("condition", "device", "cpu"), None),
        (("condition", "bundle", "manifest_sha256"), "beef"),
        (("condition", "commit"), "main"),
        (("is_complete",), None),
        (("schema_version",), 2),
        (("sections", "methods", "how"), "guessed"),
        (("sections", "methods", "notes"), None),
        (("sections", "methods", "rows", 0, "speedup"), None),
        (("sections", "methods", "rows", 0, "speedup"), "fast"),
        (("sections", "methods", "rows", 0, "speedup"), {"median": 1.0}),
        (("sections", "methods", "rows", 0, "luck"), 1),
        (("sections", "latency", "units", "first_token"), None),
        (("sections", "draft-length", "rows", 0, "rows"), 0),
        (("sections", "guesses"), {}),
    ],
)
def test_a_damaged_document_is_refused(document, path, value):
    with pytest.raises(ValidationError):
        Draft202012Validator(schema()).validate(damage(document, *path, value=value))


def test_every_table_is_printed_and_drawn_with_its_condition(whole_run):
    shown, document, plots = whole_run
    for name, section in document["sections"].items():
        assert f"{name}: {section['title'][:20]}" in shown
    num_sections = len(document["sections"])
    assert shown.count(document["condition"]["bundle"]["manifest_sha256"][:12]) == num_sections
    assert shown.count(document["condition"]["device"]["cpu"]) >= num_sections
    drawn = [name for name, section in document["sections"].items() if section["rows"]]
    assert sorted(path.name for path in plots.iterdir()) == sorted(
        f"{name}.{ending}" for name in drawn for ending in ("png", "svg")
    )
    assert len(drawn) >= num_sections - 1  # energy alone may have no source

    condition = document["condition"]
    assert condition["data"]["num_prompts"] == {"rag": 1, "ui": 1}
    assert condition["options"]["repeats"] == 1
    assert condition["options"]["max_new_tokens"] == 8
    assert condition["device"]["provider"] == "cpu"


def test_methods_stand_beside_plain(document):
    able = [name for name in METHODS if name != MTP and not needs_draft_model(name)]
    names = sorted(able, key=lambda name: name != "plain")
    for task in ("rag", "ui", "all"):
        assert [row["method"] for row in rows(document, "methods", task=task)] == names
        (plain,) = rows(document, "methods", task=task, method="plain")
        assert plain["tokens_per_step"] == 1
        assert plain["speedup"]["median"] == 1
        assert plain["accepted_share"] is None
        assert plain["extra_memory"] == 0
    for row in rows(document, "methods"):
        assert row["tokens_per_step"] >= 1
        assert row["speedup"]["low"] <= row["speedup"]["median"] <= row["speedup"]["high"]
        assert row["accepted_share"] is None or 0 <= row["accepted_share"] <= 1


def check_gain(row, base):
    assert row["gain"] * base["tokens_per_step"] == pytest.approx(row["tokens_per_step"], rel=1e-4)


def test_auto_stands_beside_auto_with_one_source_more_and_one_less(document):
    wanted = list(drafters_of(free_rows=False, earlier_requests=True))
    for task in ("rag", "ui", "all"):
        shown = rows(document, "sources", task=task)
        assert [row["drafter"] for row in shown] == wanted
        plain, auto = shown[:2]
        assert plain["tokens_per_step"] == plain["speedup"]["median"] == auto["gain"] == 1
        for row in shown:
            check_gain(row, auto)


@pytest.mark.parametrize("earlier_requests", [False, True])
@pytest.mark.parametrize("free_rows", [False, True])
def test_each_source_is_added_to_auto_or_left_out_of_it(free_rows, earlier_requests):
    situation = {"free_rows": free_rows, "earlier_requests": earlier_requests}
    auto = draft_method("auto").sources(common_phrases=True, **situation)
    absent = {"draft-model"} if earlier_requests else {"draft-model", *DRAW_ON_EARLIER}
    for source in draft_sources():
        less, more = f"without {source.name}", f"with {source.name}"
        drafters = drafters_of(**situation)
        if source.name in auto:
            assert {*drafters[less], source.name} == set(auto)
            assert source.name not in drafters[less]
        elif source.can_be_asked_for and source.name not in absent:
            assert drafters[more] == (*auto, source.name)
        else:
            assert not {less, more} & set(drafters)


def test_sources_are_measured_at_the_price_that_is_asked_for(session_of):
    costly = measure_sources(made_workbench(session_of))
    assert "with calibration" in costly.column("drafter")
    free = measure_sources(made_workbench(session_of, is_free=True, remembering=False))
    assert "without calibration" in free.column("drafter")
    assert "with earlier-requests" not in free.column("drafter")
    assert "as if rows cost nothing" in free.notes[-1]


def test_the_parts_of_an_answers_time_add_up(document):
    for row in rows(document, "breakdown"):  # one repeat: medians add up, too
        total = sum(row[part]["median"] for part in PARTS)
        assert total == pytest.approx(row["total"]["median"], rel=1e-3)
        assert row["prefill"]["median"] > 0
        assert row["decode"]["median"] > 0
        drafts = row["method"] != "plain"
        assert (row["draft"]["median"] > 0) == drafts
        assert (row["calibration"]["median"] > 0) == (row["method"] == "coordgen")
        assert row["switch"]["median"] == 0


def test_widths_strategies_and_variants_are_all_there(document):
    assert [row["rows"] for row in rows(document, "draft-length")] == [1, 4, 8, 16, 32]
    assert [row["rows"] for row in rows(document, "chunk-size")] == [1, 4, 8, 16, 32, 256]
    for name in ("drafts_prompt_lookup", "drafts_coordgen"):
        shares = [row[name] for row in rows(document, "draft-length")]
        assert sum(shares) == pytest.approx(100, rel=1e-4)
    assert [row["strategy"] for row in rows(document, "switching")] == list(STRATEGIES)
    assert [row["variant"] for row in rows(document, "graphs")] == list(VARIANTS)
    assert rows(document, "graphs")[0]["exposed_loads"]["median"] == 0


def test_memory_is_that_of_processes_that_did_nothing_else(document):
    assert [row["method"] for row in rows(document, "memory")] == list(PAPER_METHODS)
    for row in rows(document, "memory"):
        assert row["opening"]["median"] > 10
        assert row["answering"]["median"] > 10


def test_sections_can_be_chosen_and_printed_as_json(bundle_of, data, coordgen):
    bundle = bundle_of("embedded", "fp32")
    shown = coordgen(
        "bench", bundle, data, *TINY, "--sections", "latency,draft-length", "--json", "-"
    ).out
    document = json.loads(shown)
    assert list(document["sections"]) == ["draft-length", "latency"]
    assert document["is_complete"]
    shown = coordgen("bench", bundle, *TINY, "--sections", "chunk-size").out
    assert shown.startswith("chunk-size: ")
    assert "methods: " not in shown


def test_the_same_methods_with_free_rows_and_a_draft_model(bundle_of, data, coordgen):
    arguments = [bundle_of("embedded", "fp32"), data, *TINY, "--sections", "methods", "--json", "-"]
    arguments += ["--costs", "free"]
    model = ["--draft-model", bundle_of("embedded-draft", "fp32")]
    document = json.loads(coordgen("bench", *arguments, *model, "--methods", "all").out)
    names = sorted(METHODS, key=lambda name: name != "plain")
    names.remove(MTP)  # the target has no such head
    assert [row["method"] for row in rows(document, "methods", task="all")] == names
    held = {row["method"]: row["extra_memory"] for row in rows(document, "methods", task="all")}
    assert held["edgellm"] > 1 > held["diaa"] > 0
    assert document["condition"]["options"]["is_free"]
    document = json.loads(
        coordgen("bench", *arguments, "--methods", "sam", "--history", "none").out
    )
    assert [row["method"] for row in rows(document, "methods", task="all")] == ["plain", "sam"]


def test_a_streamed_target_is_measured_where_it_can_be(bundle_of, data, coordgen):
    bundle = bundle_of("embedded", "fp32")
    budget = (bundle / "block_00.weights").stat().st_size
    arguments = [bundle, data, *TINY, "--memory-budget", budget, "--sections"]
    assert "coordgen" in coordgen("bench", *arguments, "methods", "--methods", "coordgen").out
    streamed = chosen_sections(None, Settings(bundle, data, memory_budget=budget))
    assert "methods" in streamed
    assert "chunk-size" not in streamed


def test_each_part_of_edgellm_stands_beside_what_lacks_it(bundle_of, data, tmp_path, coordgen):
    bundle, report = bundle_of("embedded", "fp32"), tmp_path / "bench.json"
    budget = (bundle / "block_00.weights").stat().st_size
    streamed = ("--memory-budget", budget, "--draft-model", bundle_of("embedded-draft", "fp32"))
    command = [bundle, data, *TINY, "--sections", "edgellm", *streamed, "--json", report]
    assert "edgellm: what each part of EdgeLLM adds" in coordgen("bench", *command).out
    document = json.loads(report.read_text())
    Draft202012Validator(schema()).validate(document)
    shown = rows(document, "edgellm", task="all")
    parts = [(method, before) for method, all_before in ADDS.items() for before in all_before]
    assert [(row["method"], row["beside"]) for row in shown] == parts
    assert [row["drafted"] for row in shown] == [row["verified"] for row in shown]
    for row in shown:
        assert row["drafted"] > 0
        assert 0 <= row["kept"] <= row["drafted"]
        assert draft_method(row["method"]).in_gaps or row["provisional"] == row["kept"] == 0
    settings = Settings(bundle, data, memory_budget=budget, draft_model=bundle)
    assert "edgellm" in chosen_sections(None, settings)
    with pytest.raises(OptionError, match="needs --draft-model and --memory-budget"):
        chosen_sections(["edgellm"], replace(settings, memory_budget=None))


def test_the_ablation_of_edgellm_ends_with_the_whole():
    assert [name for name in ADDS if draft_method(name).published] == list(ADDS)
    *_, (last, before) = ADDS.items()
    assert (last, {*before} < ADDS.keys()) == ("edgellm", True)


def test_a_cell_of_a_table_is_that_of_its_delay(bundle_of, data):
    settings = Settings(bundle_of("embedded", "fp32"), data, memory_budget=10**6)
    cells = [BenchCell(replace(settings, load_delay_s=delay)) for delay in (0.0, 0.5, 0.5)]
    keys = [key_of(cell) for cell in cells]
    assert keys[0] != keys[1] == keys[2]


def test_a_draft_models_time_is_among_the_parts(session_of, monkeypatch):
    monkeypatch.setattr("coordgen_rs.lab.bench.latency.PAPER_METHODS", ("plain", "speculative"))
    workbench = made_workbench(session_of)
    workbench.draft_model = DraftModel(session_of("embedded-draft", "fp32"))
    section = measure_breakdown(workbench)
    drafts = dict(zip(section.column("method"), section.column("draft"), strict=True))
    assert drafts["speculative"].median > drafts["plain"].median == 0


def test_interruption_keeps_what_was_measured(bundle_of, data, tmp_path, monkeypatch, coordgen):
    def interrupt(workbench):
        raise KeyboardInterrupt

    monkeypatch.setitem(SECTIONS, "latency", SECTIONS["latency"]._replace(measure=interrupt))
    report = tmp_path / "bench.json"
    arguments = [bundle_of("embedded", "fp32"), data, *TINY, "--json", report]
    told = coordgen("bench", *arguments, "--sections", "draft-length,latency,energy", code=130)
    assert told.err == "coordgen: error: interrupted\n"
    assert "draft-length" in told.out
    document = json.loads(report.read_text())
    Draft202012Validator(schema()).validate(document)
    assert list(document["sections"]) == ["draft-length"]
    assert not document["is_complete"]


def test_other_tokens_are_an_error_that_names_the_method(session_of, monkeypatch):
    workbench = made_workbench(session_of)
    monkeypatch.setattr("coordgen_rs.lab.bench.workbench.generate", lambda *_, **__: iter([]))
    with pytest.raises(NotLosslessError, match="sam gave other tokens"):
        list(workbench.answers(["plain", "sam"], workbench.drafter))


def made_workbench(session_of, **settings):
    session = session_of("embedded", "fp32")
    prompts = encode_prompts(session, PROMPTS[:1], 8)
    made = Settings(session.bundle.path, repeats=2, max_new_tokens=8, **settings)
    return Workbench(made, session, prompts)


def test_methods_take_turns_within_each_repeat(session_of):
    workbench = made_workbench(session_of)
    given = list(workbench.answers(["plain", "sam"], workbench.drafter))
    assert [(one.repeat, one.method) for one in given] == [
        (0, "plain"),
        (0, "sam"),
        (1, "sam"),
        (1, "plain"),
    ]


def test_medians_are_of_all_repeats_and_lie_between_them(session_of):
    section = measure_methods(made_workbench(session_of, methods=("sam",)))
    row = dict(zip([column.name for column in section.columns], section.rows[-1], strict=True))
    assert (row["task"], row["method"]) == ("all", "sam")
    assert row["tokens_per_s"].low <= row["tokens_per_s"].median <= row["tokens_per_s"].high


def test_without_a_source_of_energy_no_figure_is_made_up(session_of, tmp_path):
    section = measure_energy(made_workbench(session_of, power_root=tmp_path))
    assert section.rows == []
    assert NO_SOURCE in section.notes[0]


def test_energy_is_what_the_meter_says(session_of, monkeypatch):
    class Meter:
        source = "a made-up meter"

        def start(self):
            pass

        def stop(self):
            return 4.0

    monkeypatch.setattr(
        "coordgen_rs.lab.bench.energy_and_memory.EnergyMeter.find", lambda root: Meter()
    )
    section = measure_energy(made_workbench(session_of))
    assert [row[0] for row in section.rows] == list(PAPER_METHODS)
    assert {row[1].median for row in section.rows} == {4.0}
    assert {row[3] for row in section.rows} == {1.0}
    assert "a made-up meter" in section.notes[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sections", "luck"), "--sections is 'luck'"),
        (("--methods", "plain,magic"), "--methods is 'magic'"),
        (("--methods", "edgellm"), "'edgellm' needs a draft model"),
        (("--strategies", "sync,luck"), "--strategies is 'luck'"),
        (("--repeats", 0), "--repeats is 0"),
        (("--load-delay", -1), "--load-delay is -1"),
        (("--load-delay", 1), "--load-delay is only for targets that are streamed"),
        (("--max-new-tokens", 1024), "leaves room"),
        (("--sections", "switching", "--profile", "absent"), "no profile at"),
        (("--memory-budget", 10**9, "--sections", "chunk-size"), "cannot be measured with a"),
    ],
)
def test_wrong_options_are_one_line(bundle_of, data, refused, options, said):
    sections = () if "--sections" in options else ("--sections", "methods")
    assert said in refused("bench", bundle_of("embedded", "fp32"), data, *sections, *options)


def test_prompts_that_are_not_there_are_one_line(bundle_of, refused):
    bundle = bundle_of("embedded", "fp32")
    assert "needs DATA" in refused("bench", bundle)
    assert "absent" in refused("bench", bundle, "absent")


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        "[1]",
        "not json",
        '{"task": "rag"}',
        '{"task": "rag", "prompt": 5}',
        '{"task": ["rag"], "prompt": "x"}',
        '{"task": "rag", "prompt": "\\ud800"}',
        '{"task": "rag", "messages": []}',
        '{"task": "rag", "messages": ["x"]}',
        '{"task": "rag", "messages": [{"role": "user"}]}',
        '{"task": "rag", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}',
        "[" * 200_000,
    ],
    ids=range(12),
)
def test_unusable_prompts_are_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"task": "rag", "prompt": "x"}) + "\n\n" + line + "\n")
    with pytest.raises(PromptsError, match="line 3"):
        read_prompts(path)
    path.write_text("\n")
    with pytest.raises(PromptsError, match="no prompt"):
        read_prompts(path)


def test_messages_are_rendered_before_they_are_encoded(tmp_path, session_of):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"task": "rag", "messages": messages}))
    prompts = read_prompts(path)
    assert prompts == [Prompt("rag", messages)]
    with pytest.raises(ChatTemplateError, match="no chat template"):
        encode_prompts(session_of("embedded", "fp32"), prompts, 8)
    template = tmp_path / "template.jinja"
    template.write_text("{% for one in messages %}{{ one.content }}\n{% endfor %}")
    bundle = tmp_path / "bundle"
    export_checkpoint(CHECKPOINTS["embedded"], bundle, chat_template=template)
    session = open_session(bundle)
    encoded = encode_prompts(session, prompts, 8)
    wanted = Tokenizer.of(session.bundle).encode("Be brief.\nWhy?\n", special_tokens=False)
    session.close()
    assert encoded["rag"][0].tolist() == wanted.tolist()


def test_prompts_may_begin_with_a_byte_order_mark_and_the_limit_holds_for_each_task(data):
    assert [prompt.task for prompt in read_prompts(data, limit=1)] == ["rag", "ui"]
    expected = read_prompts(data)
    assert all(prompt in PROMPTS for prompt in expected)
    data.write_bytes(b"\xef\xbb\xbf" + data.read_bytes())
    assert read_prompts(data) == expected


def test_a_reader_that_has_enough_is_no_error(bundle_of, data):
    command = (
        f"{' '.join(MODULE)} bench {bundle_of('embedded', 'fp32')} {data} --sections draft-length"
    )
    done = subprocess.run(
        f"{command} --repeats 1 | head -c 1", shell=True, capture_output=True, text=True
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_help_names_every_section(coordgen):
    said = coordgen("bench", "--help").out
    assert all(f"\n  {name} " in said for name in SECTIONS)
    assert str(QUICK["repeats"]) in said


def test_prompts_are_not_overwritten_by_their_records(refused, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text('{"task": "ui", "prompt": "Task:"}\n')
    told = refused("bench", "bundle", data, "--records", data)
    assert f"--records {data}: DATA is the same file" in told
    assert data.read_text().count("\n") == 1
