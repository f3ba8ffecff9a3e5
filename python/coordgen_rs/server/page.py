"""The chat page: one static document, and headers that let it do nothing but talk to this server.

In: the parts in `page_parts`, put together once. Out: the response. What the page does is in its
scripts: `chat.js` is the chat, `asking.js` asks the server, `messages.js` shows what is said, and
`answer/` how: `rendered.js`, `markdown.js` and `runs.js` its text, `steps.js` and `tree.js` its
steps and their drafts, `figures.js` what that saved; `record.js` is a dialogue, `kept.js` and
`shelf.js` keep and list them, `files.js` attaches files, `settings.js` has the samplers.
"""

import base64
import hashlib
from importlib.resources import files

from starlette.responses import HTMLResponse

_SCRIPTS = (
    *("elements.js", "vendor/marked.min.js", "answer/runs.js", "answer/markdown.js"),
    *("answer/rendered.js", "record.js", "kept.js", "answer/figures.js", "answer/tree.js"),
    *("answer/steps.js", "messages.js", "settings.js", "asking.js", "files.js"),
    *("shelf.js", "chat.js"),
)
"""In this order: each stands behind what it needs when it is read."""


def page() -> HTMLResponse:
    """The page. Only its own script and style run: the policy names them by their hashes."""
    style = _part("style.css")
    script = "\n".join(map(_part, _SCRIPTS))
    document = _part("page.html")
    document = document.replace("<style></style>", f"<style>{style}</style>")
    document = document.replace("<script></script>", f"<script>{script}</script>")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(
        document,
        headers={
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


def _part(name: str) -> str:
    return files("coordgen_rs.server").joinpath("page_parts", name).read_text("utf-8")


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
