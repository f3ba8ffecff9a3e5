"""`coordgen chat` where the terminal can place its cursor: keys, pastes, rows and commands."""

import errno
import json
import os
import shutil
import stat
from contextlib import contextmanager

import pytest

pytest.importorskip("prompt_toolkit", reason="the extra chat is not installed")
pytest.importorskip("pyte", reason="pyte is not installed")

from coordgen_rs.cli.commands.chat import dialogue_file, line_editor
from screen import Screen

TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
FUNCTION = "\n".join(["def many():", *(f"    x{n} = {n}" for n in range(38)), "    return x0"])
SLOWLY = """
import time
from pathlib import Path

from coordgen_rs.model.stream import Stream

next_piece, may_go_on, num = Stream.__next__, Path(__file__).with_name("go-on"), 0


def after_a_while(stream):
    global num
    num += 1
    while num > 3 and not may_go_on.exists():
        time.sleep(0.01)
    time.sleep(0.02)  # Ctrl-C has come when it is asked for next
    return next_piece(stream)


Stream.__next__ = after_a_while
"""
READ_SLOWLY = """
import time
from pathlib import Path

from coordgen_rs.model.request import Events, Progress

put, may_go_on = Events.put, Path(__file__).with_name("go-on")


def slowly(self, event):
    put(self, event)
    if isinstance(event, Progress):
        print(f"{event.num_read} read", flush=True)
        while self.is_wanted if event.num_read > 256 else not may_go_on.exists():
            time.sleep(0.01)


Events.put = slowly
"""
SHORT = ("--max-new-tokens", "6", "--threads", "1")


@pytest.fixture
def chat(bundle_of, tmp_path):
    """Opens a chat with the embedded model; nothing of it is kept outside the test's folder."""
    template = tmp_path / "own.jinja"
    template.write_text(TEMPLATE)
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}

    def opened(*options, bundle=None, **more):
        bundle = bundle or bundle_of("embedded", "fp32")
        arguments = ("chat", bundle, "--chat-template", template)
        environment = state | more.pop("environment", {})
        screen = Screen(*arguments, *SHORT, *options, environment=environment, **more)
        screen.until(lambda: screen.line == ">")
        return screen

    return opened


def patched(folder, code):
    """An environment in which `code` runs before everything else."""
    (folder / "sitecustomize.py").write_text(code)
    known = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{folder}{os.pathsep}{known}" if known else str(folder)}


def asked(path):
    """The questions of a saved dialogue."""
    return [it["content"] for it in dialogue_file.load(path) if it["role"] == "user"]


def said(screen, command):
    """Type a command, and wait until a message is expected again."""
    before = screen.num_asked
    screen.type(f"{command}\r")
    screen.until_asked(before)


@contextmanager
def answering(chat, folder, **environment):
    """A chat whose answer has begun, and stands still until `folder` holds a file `go-on`."""
    slow = patched(folder, SLOWLY) | environment
    options = ("--max-new-tokens", "60", "--ignore-eos")
    with chat(*options, environment=slow) as screen:
        screen.type("Tell.\r")
        screen.until(lambda: len(screen.shown.partition("Tell.")[2].strip()) > 3)
        yield screen


def test_what_is_pasted_or_typed_in_several_rows_is_one_message(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    assert len(FUNCTION.splitlines()) == 40
    with chat() as screen:
        screen.paste(FUNCTION)
        screen.until("return x0")
        said(screen, "")
        screen.type("one\x1b\rtwo")
        screen.until("two")
        said(screen, "")
        screen.paste("/* a comment\n */")
        screen.until("*/")
        said(screen, "")
        said(screen, f"/save {path}")
        screen.type("/exit\r")
        assert screen.ended() == 0
    assert asked(path) == [FUNCTION, "one\ntwo", "/* a comment\n */"]


def test_ctrl_c_clears_what_was_typed_and_leaves_only_where_nothing_was(chat):
    with chat() as screen:
        screen.until("/help lists commands")
        screen.type("\x03")
        screen.until("Ctrl-C again")
        screen.until(lambda: screen.line == ">")
        screen.type("never sent")
        screen.until("never sent")
        screen.type("\x03")
        screen.until(lambda: screen.line == ">")
        assert screen.process.poll() is None
        screen.type("\x03")
        assert screen.ended() == 0


def test_what_the_makers_recommend_is_told_and_set_at_once(chat, bundle_of, tmp_path):
    bundle = shutil.copytree(bundle_of("embedded", "fp32"), tmp_path / "advised")
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["recommended"] = {"temperature": 0.6, "top_k": 20}
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with chat(bundle=bundle) as screen:
        assert "recommend temperature 0.6, top_k 20: /set recommended" in screen.shown
        said(screen, "/set recommended")
        assert {"temperature 0.6", "top_k 20", "top_p 1", "seed drawn anew"} <= {*screen.rows}
        said(screen, "/set top_k 5")
    with chat("--temperature", "0.5", bundle=bundle) as screen:
        assert "recommend" not in screen.shown
    with chat() as screen:
        said(screen, "/set recommended")
        assert "recommend no sampling" in screen.shown


def test_ctrl_c_stops_an_answer_and_not_the_chat_and_continue_goes_on_with_it(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    with answering(chat, tmp_path) as screen:
        before = screen.num_asked
        screen.type("\x03")
        (tmp_path / "go-on").touch()
        screen.until_asked(before)
        said(screen, f"/save {path}")
        first = dialogue_file.load(path)[-1]["content"]
        said(screen, "/set max_new_tokens 5")
        said(screen, "/continue")
        said(screen, f"/save {path}")
        assert dialogue_file.load(path)[-1]["content"].startswith(first)
        assert len(dialogue_file.load(path)[-1]["content"]) > len(first)
        assert screen.process.poll() is None
        screen.type("\x04")
        assert screen.ended() == 0


@pytest.mark.parametrize("terminal", [{}, {"TERM": "dumb"}], ids=["full", "plain"])
def test_ctrl_c_that_stops_an_answer_is_none_of_the_two_that_leave(chat, tmp_path, terminal):
    with answering(chat, tmp_path, **terminal) as screen:
        before = screen.num_asked
        screen.type("\x03")
        (tmp_path / "go-on").touch()
        screen.until_asked(before)
        screen.press_until("\x03", lambda: "Ctrl-C again" in screen.shown)
        assert screen.process.poll() is None
        screen.press_until("\x03", lambda: screen.process.poll() is not None)
        assert screen.process.returncode == 0


def test_ctrl_c_stops_a_long_prompt_behind_the_chunk_that_is_read(chat, tmp_path):
    (tmp_path / "lamp.txt").write_text("The lamp is green. " * 160)
    with chat(environment=patched(tmp_path, READ_SLOWLY)) as screen:
        said(screen, f"/file {tmp_path / 'lamp.txt'}")
        before = screen.num_asked
        screen.type("What is it?\r")
        screen.until("256 read")
        screen.type("\x03")
        (tmp_path / "go-on").touch()
        screen.until("stopped before the answer began")
        screen.until_asked(before)
        assert "768 read" not in screen.shown
        said(screen, "/stats")
        assert "answer: 0 tokens" in screen.shown


def test_what_is_typed_and_pasted_while_an_answer_runs_is_read_behind_it(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    with answering(chat, tmp_path) as screen:
        screen.type("/set max_new_tokens 5\rsecond\r")
        screen.paste("third\rand its row")
        screen.type(f"\r/save {path}\r")
        (tmp_path / "go-on").touch()
        screen.until("messages saved in")
        answer = screen.shown.partition("Tell.")[2].partition("\n>")[0]
    assert "second" not in answer
    assert asked(path) == ["Tell.", "second", "third\nand its row"]


def test_ctrl_c_that_stops_an_answer_loses_nothing_that_was_typed_meanwhile(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    with answering(chat, tmp_path) as screen:
        screen.type("/set max_new_tokens 5\rsecond\rthi")
        screen.type("\x03")
        screen.type(f"rd\r/save {path}\r")
        (tmp_path / "go-on").touch()
        screen.until("messages saved in")
    assert asked(path) == ["Tell.", "second", "third"]


def test_what_is_typed_while_an_answer_runs_is_not_shown_in_it_on_a_plain_terminal(chat, tmp_path):
    with answering(chat, tmp_path, TERM="dumb") as screen:
        screen.type("/set top_k 7\r/exit\r")
        (tmp_path / "go-on").touch()
        assert screen.ended() == 0
        answer = screen.shown.partition("Tell.")[2].partition("(cut by")[0]
    assert "top_k" not in answer


def test_wide_and_combined_characters_are_shown_and_sent_whole_also_after_a_resize(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    text = "日本語のテキスト é ä̈ 한국어 🙂 end"
    with chat(size=(30, 20)) as screen:
        screen.type(text)
        screen.until("end")
        screen.resize(50, 20)
        screen.type("\x7f\x7f\x7fEND")
        screen.until("END")
        said(screen, "")
        said(screen, f"/save {path}")
    assert asked(path) == [text.removesuffix("end") + "END"]


def test_tab_completes_commands_settings_and_files(chat, tmp_path):
    (tmp_path / "notes-of-today.txt").write_text("The lamp is green.")
    with chat(cwd=tmp_path) as screen:
        screen.type("/contin\t")
        screen.until("/continue")
        screen.type("\x15/set repet\t")
        screen.until("/set repetition_penalty")
        screen.type("\x15/file notes\t")
        screen.until("/file notes-of-today.txt")
        said(screen, "")
        assert "(notes-of-today.txt goes with the next message)" in screen.shown


def test_a_file_goes_with_the_next_message_alone_and_not_if_it_is_too_long(chat, tmp_path):
    path, notes, lamp = tmp_path / "dialogue.json", tmp_path / "notes.md", tmp_path / "lamp.txt"
    notes.write_text("```\ncode\n```\n")
    lamp.write_text("The lamp is green. " * 200)
    with chat() as screen:
        said(screen, f"/file {lamp}")
        said(screen, "Too long?")
        assert "lamp.txt does not go with the next message" in " ".join(screen.rows)
        said(screen, f"/file {notes}")
        said(screen, "What is this?")
        said(screen, "And this?")
        said(screen, f"/save {path}")
        said(screen, "/file none")
        assert "No such file" in screen.shown
    assert asked(path) == ["What is this?\n\nnotes.md:\n````\n```\ncode\n```\n````", "And this?"]


def test_the_last_message_is_edited_and_asked_again(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    with chat() as screen:
        said(screen, "/edit")
        assert "nothing was asked yet" in screen.shown
        said(screen, "first")
        said(screen, "second")
        screen.type("/edit\r")
        screen.until(lambda: screen.line == "> second")
        said(screen, " and more")
        said(screen, f"/save {path}")
        assert asked(path) == ["first", "second and more"]
        said(screen, "/edit third")
        said(screen, "/retry")
        said(screen, f"/save {path}")
        assert asked(path) == ["first", "third"]
        screen.type("/edit\r")
        screen.until(lambda: screen.line == "> third")
        screen.type("\x03")
        screen.until("nothing was changed")
        before = screen.num_asked
        screen.type("/edit\r")
        screen.until(lambda: screen.line == "> third")
        screen.write(b" \xe9x\r")
        screen.until("is not")
        screen.until_asked(before + 1)
        said(screen, f"/save {path}")
    assert asked(path) == ["first", "third"]


def test_settings_are_those_of_the_command_line(chat):
    with chat("--top-k", "4", "--temperature", "0.5") as screen:
        said(screen, "/set temperature hot")
        assert "temperature must be a number, but is 'hot'" in screen.shown
        said(screen, "/set seed 7")
        said(screen, "/set temperature 0")
        said(screen, "/set min_p 0.5")
        assert "min_p is for sampling: /set temperature above 0 first" in screen.shown
        said(screen, "/set warmth 1")
        assert "there is no setting warmth" in screen.shown
        said(screen, "/set top_k default")
        said(screen, "/set")
        listed = screen.shown
        assert "temperature 0.0" in listed
        assert "seed 7" in listed
        assert "top_k 0" in listed
        said(screen, "Go on.")
        assert "error" not in screen.shown.split("Go on.")[-1]


def test_dialogues_are_saved_and_loaded_and_nothing_else_is_overwritten(chat, tmp_path):
    path, other = tmp_path / "a dialogue.json", tmp_path / "other.json"
    other.write_text('{"format": 7}')
    with chat("--system", "Be short.") as screen:
        said(screen, "first")
        said(screen, f"/save '{path}'")
        said(screen, f"/save {other}")
        assert "its format is 7; it stays" in screen.shown.replace("\n", "")
        said(screen, "/reset")
        said(screen, "second")
        said(screen, f"/load '{path}'")
        said(screen, "third")
        said(screen, f"/save {tmp_path / 'again.json'}")
    assert other.read_text() == '{"format": 7}'
    assert asked(tmp_path / "again.json") == ["first", "third"]
    assert dialogue_file.load(path)[0] == {"role": "system", "content": "Be short."}
    assert json.loads(path.read_text())["model"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_dialogue_is_written_over_only_if_that_is_wanted(chat, tmp_path):
    path = tmp_path / "dialogue.json"
    with chat() as screen:
        said(screen, f"/save {path}")
        assert "nothing to save" in screen.shown
        said(screen, "first")
        said(screen, f"/save {path}")
        said(screen, "second")
        said(screen, f"/save {path}")  # it is this one's
        said(screen, "/reset")
        said(screen, f"/save {path}")
        said(screen, "third")
        for answer, expected in (("no", ["first", "second"]), ("yes", ["third"])):
            said(screen, f"/save {path}")
            assert "write over it?" in screen.shown
            said(screen, answer)
            assert asked(path) == expected


def test_what_was_typed_comes_back_in_the_next_chat_unless_that_is_not_wanted(chat, tmp_path):
    with chat() as screen:
        said(screen, "remember me")
        screen.type("/exit\r")
        assert screen.ended() == 0
    (kept,) = tmp_path.glob("state/coordgen_rs/chat_history")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    with chat() as screen:
        screen.type("\x1b[A\x1b[A")
        screen.until("remember me")
    before = kept.read_bytes()
    with chat("--no-input-history") as screen:
        said(screen, "forget me")
    assert kept.read_bytes() == before


def test_a_damaged_dialogue_is_refused_with_what_is_wrong(tmp_path):
    path = tmp_path / "damaged.json"
    dialogue_file.save(
        path, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "m"
    )
    good = json.loads(path.read_text())
    changes = {
        "its messages follow each other in a circle": {"0": {"parent": "1"}},
        r"messages\.1\.role is 'tool'": {"1": {"role": "tool"}},
        r"messages\.1\.content is int 3": {"1": {"content": 3}},
        "is no dialogue of format 1": {"1": {"parent": "nowhere"}},
    }
    for told, change in changes.items():
        messages = {id: it | change.get(id, {}) for id, it in good["messages"].items()}
        path.write_text(json.dumps(good | {"messages": messages}))
        with pytest.raises(dialogue_file.OptionError, match=told):
            dialogue_file.load(path)
    for content in ("", "[]", "{", '{"format": 1}', '{"format": 1, "messages": [], "current": 3}'):
        path.write_text(content)
        with pytest.raises(dialogue_file.OptionError, match=r"damaged\.json"):
            dialogue_file.load(path)


def test_a_path_that_cannot_be_leaves_the_chat_as_it_is(chat, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with chat() as screen:
        for number, command in enumerate(("/load", "/save", "/file"), 1):
            said(screen, f"{command} ~nosuchuser/{number}")
            assert screen.shown.count(f"~nosuchuser/{number}") > 1
            before = screen.num_asked
            screen.paste(f"{command} a\0b")
            screen.type("\r")
            screen.until_asked(before)
            assert screen.shown.count("holds no NUL") == number
        said(screen, f"/file {tmp_path / 'pipe'}")
        assert "isnoregularfile" in "".join(screen.shown.split())  # lines end within words
        said(screen, "Hello")
        assert "Traceback" not in screen.shown


def test_an_answer_steers_no_terminal(chat):
    with chat("--regex", "\x1b\\[2J\x07[a-c]", environment={"NO_COLOR": "1"}) as screen:
        said(screen, "Hello")
        assert "> Hello" in screen.shown
        assert "\u241b[2J\u2407" in screen.shown


def test_what_was_typed_earlier_is_cut_at_once_or_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "typed"
    path.write_bytes(b"\n# now\n+said\n" * 100)
    monkeypatch.setattr(line_editor, "_MOST_HISTORY_BYTES", 1000)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("coordgen_rs.store.files.os.fsync", full)
        assert line_editor._history(path).get_strings() == []
    assert path.stat().st_size == 1300
    assert "said" in [*line_editor._history(path).load_history_strings()]
    assert path.stat().st_size == 500
    assert [it.name for it in tmp_path.iterdir()] == ["typed"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
