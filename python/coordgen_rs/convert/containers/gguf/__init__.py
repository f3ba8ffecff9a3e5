"""GGUF files, as llama.cpp reads them.

Data flow: `header.py` reads metadata and the places of tensors, of all parts of a file ->
`metadata.py` gives the numbers of the architecture and refuses keys that nobody has read,
`tensors.py` rows of tensors, `tokenizer.py` a tokenizer.json, and what
there is about chats and answers.
"""
