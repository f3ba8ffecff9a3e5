"""Files of models: their tensors, metadata and tokenizers, whatever the family."""
