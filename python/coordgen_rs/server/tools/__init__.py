"""Functions that a model may call: their grammar, their calls, what the model reads of them."""
