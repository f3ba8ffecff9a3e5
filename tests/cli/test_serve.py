"""`coordgen serve`: what it refuses before it opens anything."""

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from coordgen_rs import Model
from coordgen_rs.cli.main import main
from coordgen_rs.errors import BundleError


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--host", "0.0.0.0"), "--insecure"),
        (("--host", "0.0.0.0", "--api-key", "k", "--history", "h"), "--share-requests"),
        (("--host", "::", "--insecure", "--sources", "earlier-requests"), "--share-requests"),
        (("--api-key", "a b"), "without spaces"),
        (("--api-key", "ä"), "ASCII"),
        (("--namespace", "n"), "--namespace needs --history"),
        (("--port", "65536"), "--port is 65536"),
        (("--host", "192.0.2.1", "--insecure"), "cannot listen on 192.0.2.1 port 8080"),
        (("--host", "no such host", "--insecure"), "cannot listen on no such host"),
    ],
)
def test_what_is_unsafe_or_impossible_is_refused(capsys, monkeypatch, options, told):
    monkeypatch.delenv("COORDGEN_API_KEY", raising=False)
    assert main(["serve", "no-bundle", *options]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "remembers"),
    [
        ((), True),
        (("--host", "0.0.0.0", "--insecure"), False),
        (("--host", "0.0.0.0", "--insecure", "--share-requests"), True),
    ],
)
def test_strangers_do_not_draft_from_each_other(monkeypatch, options, remembers):
    asked = []

    def opened(*_, **options):
        asked.append(options)
        raise BundleError("this is enough")

    monkeypatch.setattr(Model, "open", opened)
    assert main(["serve", "no-bundle", "--port", "0", *options]) == 2
    assert [options["remember"] for options in asked] == [remembers]


def test_a_bundle_that_is_none_ends_the_server(capsys, tmp_path):
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "is not a bundle" in last


@pytest.mark.parametrize(
    ("options", "is_shared"),
    [
        ((), True),
        (("--host", "0.0.0.0", "--insecure"), False),
        (("--host", "0.0.0.0", "--insecure", "--share-requests"), True),
    ],
)
def test_requests_of_other_clients_are_drafted_from_on_this_machine_alone(
    monkeypatch, options, is_shared
):
    opened = []

    def fail(path, **chosen):
        opened.append(chosen["remember"])
        raise BundleError("enough")

    monkeypatch.setattr(Model, "open", fail)
    assert main(["serve", "bundle", "--port", "0", *options]) == 2
    assert opened == [is_shared]
