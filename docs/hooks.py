"""Hooks of `make docs`: pages whose source stands elsewhere, and links that hold in both places.

In: README.md and its like, models/*.md and the parser of `coordgen`. Out: pages of the site, so
that nothing is kept twice. A page's links are written as GitHub wants them; here they become links
within the site, or plain text where they name a file that the site does not have.
"""

import argparse
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import api_tables
from coordgen_rs.cli.main import make_parser

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "models/DEVICES.md": "snapdragon.md",
    "models/README.md": "embedded-model.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Sources outside `docs/`, and the pages that they become."""

COMMAND_LINE = "command-line.md"
_HELP_COLUMNS = 100
_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)="(?:https?:)?//"""
    r"""|(?:url\(|@import )['"]?(?:https?:)?//"""
    r"""|class="mermaid""",  # the theme fetches what draws these
)
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#:]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in `docs/`."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, COMMAND_LINE, content=command_line()))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point the page's links to where their targets are in the site."""
    markdown = api_tables.written_out(markdown)
    sources = {to: source for source, to in PAGES.items()}
    source = sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return _LINK.sub(lambda link: _in_site(link, posixpath.dirname(source)), markdown)


def _in_site(link: re.Match[str], folder: str) -> str:
    target = posixpath.normpath(posixpath.join(folder, link["target"]))
    if target in PAGES:
        return f"[{link['text']}]({PAGES[target]}{link['anchor'] or ''})"
    if target.startswith("docs/"):
        return f"[{link['text']}]({target.removeprefix('docs/')}{link['anchor'] or ''})"
    if not (ROOT / target).exists():
        raise PluginError(f"no {target}, which {link[0]} names")
    return link["text"]


def on_post_build(*, config: MkDocsConfig) -> None:
    """Refuse a site that would fetch anything from elsewhere while it is read.

    Raises:
        PluginError: A page or a style sheet would; the message names it.
    """
    site = Path(config.site_dir)
    for path in (*site.rglob("*.html"), *site.rglob("*.css")):
        found = _ELSEWHERE.search(path.read_text("utf-8"))
        if found:
            raise PluginError(f"{path.relative_to(site)} asks for something elsewhere: {found[0]}")


def command_line() -> str:
    """The page of the command line: what `--help` prints, of every command."""
    parts = ["# Command line", "What `--help` prints, of every command."]
    for parser in make_parser().with_commands():
        parts += [f"## `{parser.prog}`", f"```text\n{_help(parser)}```"]
    return "\n\n".join(parts)


def _help(parser: argparse.ArgumentParser) -> str:
    formatter = parser.formatter_class
    parser.formatter_class = lambda prog: formatter(prog, width=_HELP_COLUMNS)
    return parser.format_help()
