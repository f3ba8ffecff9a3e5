"""Families of models, and checkpoints of them as users have them.

Data flow: `checkpoint.py` opens a container -> `table.py` finds the family, by the names of Hugging
Face or of GGUF -> `family.py` reads its fields, which `gguf.py` makes of a GGUF file's metadata,
into a `ModelConfig` (`model_config.py`) -> the tensors get Llama's names and shapes -> a
`Checkpoint`. A plain family is a row of `table.py`. Each of the others is a file: what its
config.json and its GGUF files say, their names of tensors, and what is refused.
"""
