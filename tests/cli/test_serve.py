"""`coordgen serve`: what it refuses before it opens anything."""

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

import socket

from coordgen_rs import Model
from coordgen_rs.cli.commands import serve
from coordgen_rs.cli.main import main
from coordgen_rs.cli.parser import Parser
from coordgen_rs.errors import BundleError, OptionError
from coordgen_rs.server.guard import read_keys
from coordgen_rs.server.models.catalog import find_models


@pytest.fixture
def model(tmp_path):
    """A file that looks like a model until it is opened."""
    path = tmp_path / "model.gguf"
    path.touch()
    return str(path)


def test_names_and_origins_are_as_requests_have_them():
    parser = Parser()
    serve.add_arguments(parser)
    origins = ["https://Chat.example", "http://localhost:3000", "http://[::1]:80", "null"]
    origins += ["app://obsidian.md", "chrome-extension://abc"]
    given = [word for origin in origins for word in ("--allow-origin", origin)]
    access = serve.chosen_access(parser.parse_args(["b", "--allow-host", "Chat.example.", *given]))
    assert access.hosts == ("chat.example",)
    assert access.origins == tuple(origin.lower() for origin in origins)


def test_a_port_that_another_program_has_is_told_with_what_to_do(model, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", model, "--port", str(taken.getsockname()[1])]) == 2
    assert "another program listens there: give --port, or 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "remembers"),
    [
        ((), True),
        (("--host", "0.0.0.0", "--insecure"), False),
        (("--host", "0.0.0.0", "--api-key", "k", "--history", "h"), True),
    ],
)
def test_nothing_is_remembered_where_clients_cannot_be_told_apart(
    monkeypatch, model, options, remembers
):
    monkeypatch.delenv("COORDGEN_API_KEY", raising=False)
    asked = []

    def opened(_, **options):
        asked.append(options)
        raise BundleError("this is enough")

    monkeypatch.setattr(Model, "open", opened)
    given = ("--context", "64", "--kv-cache", "f16")
    assert main(["serve", model, "--port", "0", *given, *options]) == 2
    (options,) = asked
    assert (options["remember"], options["prefix_memory"] > 0) == (remembers, remembers)
    assert (options["context"], options["kv_cache"]) == (64, "f16")


@pytest.mark.parametrize(("limit", "kept"), [(1 << 30, 1 << 27), (1 << 40, 512_000_000)])
def test_earlier_prompts_take_an_eighth_of_what_a_container_may_use(
    monkeypatch, model, limit, kept
):
    asked = []

    def opened(_, **options):
        asked.append(options["prefix_memory"])
        raise BundleError("this is enough")

    monkeypatch.setattr(Model, "open", opened)
    monkeypatch.setattr(serve, "memory_bytes", lambda: limit)
    assert main(["serve", model, "--port", "0"]) == 2
    assert asked == [kept]


@pytest.mark.parametrize(
    ("host", "by", "is_by_key"),
    [("127.0.0.1", "key", True), ("127.0.0.1", "none", False), ("0.0.0.0", "key", True)],
)
def test_keys_of_a_file_have_names_and_namespaces(tmp_path, host, by, is_by_key):
    path = tmp_path / "keys"
    path.write_text("# ours\nalice s3cret\n\nother\nalice s3cret-too\n")
    parser = Parser()
    serve.add_arguments(parser)
    given = ("bundle", "--host", host, "--namespace-by", by, "--api-key-file", str(path))
    access = serve.chosen_access(parser.parse_args(given))
    alice, other, again = access.keys
    assert (alice.name, alice.secret, again.name) == ("alice", b"s3cret", "alice")
    assert other.name.startswith("key-")
    assert "other" not in other.name
    assert access.namespace_by_key is is_by_key
    assert "s3cret" not in repr(access)


def test_a_link_is_served_by_its_own_name(tmp_path):
    (tmp_path / "blob").touch()
    (tmp_path / "model.gguf").symlink_to("blob")
    assert [one.name for one in find_models([tmp_path / "model.gguf"])] == ["model"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no key"),
        ("a b c", "line 1"),
        ("\xff", "cannot be read"),
        ("a b\nä", "keys, line 2: .*ASCII"),
    ],
)
def test_a_file_that_holds_no_keys_is_refused(tmp_path, text, told):
    path = tmp_path / "keys"
    path.write_text(text, "latin-1" if text == "\xff" else "utf-8")
    with pytest.raises(OptionError, match=told):
        read_keys(path)
