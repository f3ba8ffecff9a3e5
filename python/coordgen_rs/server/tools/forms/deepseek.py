"""DeepSeek-V3 and R1: for each call a mark, the name, and JSON in a block of code."""

from coordgen_rs.server.tools.forms.frame import Frame


def _mark(*words: str) -> str:
    """A mark: its bars are of full width, and its words are joined by a block."""
    joined = "\N{LOWER ONE EIGHTH BLOCK}".join(("tool", *words))
    return f"<\N{FULLWIDTH VERTICAL LINE}{joined}\N{FULLWIDTH VERTICAL LINE}>"


_BEGIN = _mark("calls", "begin")
_CALL = _mark("call", "begin")
_SEPARATOR = _mark("sep")
_END = _mark("call", "end")

FORM = Frame(
    name="deepseek",
    is_of=lambda template: _BEGIN in template,
    opening=_BEGIN,
    begin="",
    before=f"{_CALL}function{_SEPARATOR}",
    after="\n```json\n",
    end=f"\n```{_END}",
    between="\n",
    closing=_mark("calls", "end"),
    hidden=(_CALL, _SEPARATOR, _END),
)
