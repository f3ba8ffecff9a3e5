"""The site that `make docs` builds: links hold there too, and nothing comes from elsewhere."""

from types import SimpleNamespace

import pytest

pytest.importorskip("mkdocs", reason="no mkdocs here: `make docs` installs it")

from mkdocs.exceptions import PluginError

import hooks


def on_page(markdown, page):
    file = SimpleNamespace(src_uri=page)
    return hooks.on_page_markdown(markdown, page=SimpleNamespace(file=file))


def built(folder, name, content):
    (folder / name).write_text(content)
    hooks.on_post_build(config=SimpleNamespace(site_dir=str(folder)))


def test_links_between_documents_become_links_between_pages():
    assert on_page("[a](docs/history.md#x)", "index.md") == "[a](history.md#x)"
    assert on_page("![a](docs/data-flow.svg)", "index.md") == "![a](data-flow.svg)"
    assert on_page("[a](../models/DEVICES.md)", "own-model.md") == "[a](snapdragon.md)"
    assert on_page("[a](DEVICES.md)", "embedded-model.md") == "[a](snapdragon.md)"
    assert on_page("[a](python-api.md)", "own-model.md") == "[a](python-api.md)"


def test_links_that_leave_the_site_become_text_and_must_lead_somewhere():
    assert on_page("see [LICENSE](LICENSE).", "index.md") == "see LICENSE."
    assert on_page("[a](https://example.org/x.md)", "index.md") == "[a](https://example.org/x.md)"
    with pytest.raises(PluginError, match=r"no docs-of-old\.md"):
        on_page("[a](docs-of-old.md)", "index.md")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.html", '<link rel="stylesheet" href="https://fonts.example/a.css">'),
        ("a.html", '<img alt="" src="//cdn.example/a.png">'),
        ("a.html", '<pre class="mermaid">a</pre>'),
        ("a.css", "@import 'http://fonts.example/a.css';"),
        ("a.css", "a { background: url(https://cdn.example/a.png) }"),
    ],
)
def test_a_site_that_fetches_from_elsewhere_is_refused(tmp_path, name, content):
    with pytest.raises(PluginError, match=name):
        built(tmp_path, name, content)


def test_a_site_may_name_other_sites(tmp_path):
    page = '<a href="https://example.org">paper</a><img src="a.svg">'
    built(tmp_path, "a.html", page)
    assert [path.read_text() for path in tmp_path.rglob("a.html")] == [page]


def test_the_help_of_every_command_is_on_its_page():
    page = hooks.command_line()
    assert "## `coordgen history ls`" in page
    assert all(option in page for option in ("--prompt-file", "--simulate-decode", "--max-tokens"))
