"""GGUF files, as llama.cpp reads them.

Data flow: `file.py` reads the header, of all parts of a file, and rows of its tensors ->
`metadata.py` gives the numbers of the architecture and refuses keys that nobody has read,
`tokenizer.py` a tokenizer.json, and what there is about chats and answers.
"""
