"""Text: tokenizers, chat templates, stop strings, and text that arrives token by token."""
