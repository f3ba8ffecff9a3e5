"""Files that hold models: what each format says, in its own words, whatever the family.

Each gives tensors that are read piece by piece (`tensor.py`), metadata, a tokenizer and chat
templates: a Hugging Face directory (`hugging_face.py`), perhaps fetched by its name, a
GGUF file (`gguf/`), or a checkpoint of llama2.c (`llama2c.py`).
"""
