"""`coordgen serve`: what it refuses before it opens anything."""

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")
pytest.importorskip("uvicorn", reason="the extra server is not installed")

from coordgen_rs.cli.main import main


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--host", "0.0.0.0"), "--insecure"),
        (("--host", "0.0.0.0", "--api-key", "k", "--history", "h"), "--share-history"),
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


def test_a_bundle_that_is_none_ends_the_server(capsys, tmp_path):
    assert main(["serve", str(tmp_path), "--port", "0"]) == 2
    *_, last = capsys.readouterr().err.splitlines()
    assert "is not a bundle" in last
