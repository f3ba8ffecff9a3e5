"""GGUF files, as llama.cpp reads them, opened as checkpoints under Hugging Face names.

Data flow: `header.py` reads metadata and the places of tensors, `parts.py` those of all parts of a
file -> `metadata.py` turns the metadata into what a config.json would say, `tensors.py` the tensors
(`block_types.py` their quantised blocks) under their Hugging Face names, `tokenizer.py` the
vocabulary into a tokenizer.json (`pre_tokenizers.py`, `sentence_pieces.py`) -> `model_file.py` puts
them together.
"""
