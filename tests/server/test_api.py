"""The server's paths over a fake model: shapes, fields, refusals, and who may ask."""

import base64
import hashlib
import re
from http.client import HTTPConnection
from importlib.resources import files

import pytest

pytest.importorskip("starlette", reason="the extra server is not installed")

from coordgen_rs.errors import BundleError, ChatTemplateError
from coordgen_rs.server.guard import api_key
from coordgen_rs.server.metrics import Family, exposition
from fake_model import FakeTokenizer
from fake_served import listening, refused, serving

CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def test_a_seed_is_drawn_for_sampling_and_told(client, model):
    told = [client.post(CHAT, json=HELLO | {"temperature": 1}).json() for _ in range(2)]
    seeds = [one["coordgen"]["seed"] for one in told]
    assert seeds == [options["seed"] for _, options in model.asked]
    assert seeds[0] != seeds[1]
    assert client.post(CHAT, json=HELLO).json()["coordgen"]["seed"] is None


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat"])
def test_a_long_head_and_a_long_body_are_refused_in_the_form_of_the_dialect(client, path):
    for headers in ({"X": "x" * 17000}, {f"X-{i}": "x" * 1000 for i in range(17)}):
        response = client.get(path, headers=headers)
        assert (response.status_code, response.headers["connection"]) == (431, "close")
        assert "16,384" in str(response.json()["error"])
    response = client.post(path, content=b" " * 9_000_000)
    assert (response.status_code, response.headers["connection"]) == (413, "close")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("/srv/m x/b has no chat template: give one (--chat-template FILE)", "the model has no"),
        ("/srv/t.jinja cannot be applied: roles alternate", "the chat template cannot be applied:"),
        (r"C:\m\t.jinja is malformed in line 2: x", "the chat template is malformed in line 2: x"),
        ("/srv/m/t.json: chat_template is 5, expected text", "the chat template cannot be read"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat", "/apply-template"])
def test_no_path_of_the_servers_machine_is_told(client, model, monkeypatch, path, said, told):
    def refuse(*args, **more):
        raise ChatTemplateError(said)

    monkeypatch.setattr(model, "chat_prompt", refuse)
    body = HELLO if path == "/apply-template" else HELLO | {"stream": False}
    body |= {"max_tokens": 5} if path == "/v1/messages" else {}
    response = client.post(path, json=body)
    assert (response.status_code, told in response.text) == (400, True), response.text
    assert all(part not in response.text for part in ("srv", "C:", "Model.open"))


def test_a_failure_that_names_a_path_is_told_by_its_kind_and_logged(client, model, caplog):
    model.fails_at["hello"] = BundleError("/srv/models/a.onnx is damaged")
    error = refused(client.post(CHAT, json=HELLO), 500)
    assert ("BundleError" in error["message"], "srv" in error["message"]) == (True, False)
    assert "/srv/models/a.onnx" in caplog.text


def test_the_name_of_a_model_is_one_label_whatever_it_holds():
    empty = Family("y", "gauge", "None.", {})
    told = Family("x", "counter", "All.", {"z": 1}, "y")
    text = exposition({'a"b\\c\nd': [told, empty], "e": [told]})
    labels = ('model="a\\"b\\\\c\\nd",y="z"', 'model="e",y="z"')
    samples = "".join(f"x{{{one}}} 1\n" for one in labels)
    assert text == f"# HELP x All.\n# TYPE x counter\n{samples}"


def test_what_nobody_expects_is_told_and_logged_by_its_type_alone(client, monkeypatch, caplog):
    def fail(self, text, *, special_tokens):
        raise KeyError(text)

    monkeypatch.setattr(FakeTokenizer, "encode", fail)
    told = refused(client.post("/tokenize", json={"content": "a secret"}), 500)
    assert told["message"] == "internal error: KeyError"
    assert "internal error: KeyError" in caplog.text
    assert "a secret" not in caplog.text


def test_an_unknown_host_is_refused(client):
    for host in (
        *("evil.example", "evil.example:8080", "localhost.evil", "", "["),
        *("evil.example@localhost", "localhost/evil", "localhost?evil", "localhost#evil"),
    ):
        error = refused(client.get("/health", headers={"Host": host}), 403)
        assert error["code"] == "host_not_allowed"
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:80", "[::1]:80", "10.0.0.1"):
        assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://localhost/health", 200),
        ("HTTP://127.0.0.1:1/v1/models?x=1", 200),
        ("http://localhost", 200),
        ("http://localhost/v1/nothing", 404),
        ("http://evil.example/health", 403),
        ("ftp://localhost/health", 404),
    ],
)
def test_a_request_may_name_the_whole_url(model, target, status):
    with listening(model) as url:
        connection = HTTPConnection(url.removeprefix("http://"), timeout=600)
        connection.request("GET", target, headers={"Connection": "close"})
        assert connection.getresponse().status == status
        connection.close()


def test_a_page_from_elsewhere_may_not_ask_unless_it_is_allowed(client, model):
    there = {"Origin": "https://chat.example"}
    assert refused(client.post(CHAT, json=HELLO, headers=there), 403)["code"]
    assert model.asked == []
    own = {"Origin": "http://localhost:8080"}
    answered = client.post(CHAT, json=HELLO, headers=own)
    assert answered.status_code == 200
    assert "access-control-allow-origin" not in answered.headers
    for origin in ("null", "", "http://[", "http://localhost:8081", "http://localhost:8080.evil"):
        refused(client.get("/health", headers={"Origin": origin}), 403)
    allowed = {"origins": ("https://chat.example",), "keys": (api_key("k"),), "hosts": ("box",)}
    with serving(model, **allowed) as other:
        asked = there | {"Access-Control-Request-Method": "POST", "Host": "box"}
        told = other.options(CHAT, headers=asked)
        assert told.headers["access-control-allow-origin"] == "https://chat.example"
        asked |= {"Access-Control-Request-Private-Network": "true"}  # Chromium's, of public pages
        told = other.options(CHAT, headers=asked)
        assert (told.status_code, told.text) == (200, "OK")
        assert told.headers["access-control-allow-private-network"] == "true"
        for status, headers in ((401, {}), (403, {"Host": "evil.example"})):
            told = other.get("/v1/models", headers=there | headers)
            assert told.status_code == status
            assert told.headers["access-control-allow-origin"] == "https://chat.example"


def test_each_name_of_a_key_is_a_namespace(model):
    keys = (api_key("one", "a"), api_key("two", "a"), api_key("three"))
    with serving(model, keys=keys, namespace_by_key=True, namespace="base") as client:
        for key in ("one", "two", "three"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post(CHAT, json=HELLO, headers=headers).status_code == 200
        two_headers = [("Authorization", "Bearer one"), ("Authorization", "Bearer three")]
        refused(client.post(CHAT, json=HELLO, headers=two_headers), 401)
    namespaces = [options["namespace"] for _, options in model.asked]
    assert namespaces == ["base/a", "base/a", f"base/{keys[2].name}"]
    with serving(model, keys=keys) as client:
        client.post(CHAT, json=HELLO, headers={"Authorization": "Bearer one"})
    assert model.asked[-1][1]["namespace"] is None


def test_the_page_is_one_file_that_asks_nobody_else(model):
    with serving(model, keys=(api_key("secret"),)) as client:
        page = client.get("/")
    assert page.status_code == 200
    assert "secret" not in page.text
    marked = files("coordgen_rs.server").joinpath("page_parts/vendor/marked.min.js").read_text()
    assert marked in page.text
    ours = page.text.replace(marked, "")  # whose text names its home and has a function `url`
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://|@import|url\(""", ours)
    for banned in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert banned not in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for kind in ("script", "style"):
        content = re.search(f"<{kind}>(.*?)</{kind}>", page.text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
