"""Functions that a model may call: what it reads of them, its calls, and their grammar.

`functions.py` reads what a request offers. `formats.py` lists the formats in which models write
calls: between marks (`marked.py`) or in gpt-oss's channels (`harmony.py`), with arguments in JSON,
as `pairs.py` or as `xml.py`; and it writes for a chat template what it reads of tools. `syntax.py`
has the pieces of their grammars, `calls.py` what readers tell, and the buffer that they read from.
"""
