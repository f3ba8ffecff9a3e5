"""Functions that a model may call: what it reads of them, its calls, and their grammar.

`functions.py` reads what a request offers, and `prompts.py` writes it for a chat template.
`formats.py` lists the formats in which models write calls: between marks (`marked_format.py`,
`marked_reader.py`) or in gpt-oss's channels (`harmony.py`), with arguments in a syntax of
`arguments/`. `constraint.py` makes the grammar of an answer, of pieces from `lexicon.py`;
`calls.py` has what readers tell, and `text_buffer.py` what they read from.
"""
