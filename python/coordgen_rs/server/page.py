"""The chat page: one static file, and headers that let it do nothing but talk to this server.

In: nothing. Out: the response. What the page does is in `page.html`.
"""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.responses import HTMLResponse

_INLINE = re.compile("<(script|style)>(.*?)</", re.DOTALL)


def page() -> HTMLResponse:
    """The page. Only its own script and style run: the policy names them by their hashes."""
    text = files("coordgen_rs.server").joinpath("page.html").read_text("utf-8")
    hashes = {kind: _hash(content) for kind, content in _INLINE.findall(text)}
    policy = (
        f"default-src 'none'; script-src {hashes['script']}; style-src {hashes['style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return HTMLResponse(
        text,
        headers={
            "Content-Security-Policy": policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        },
    )


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
