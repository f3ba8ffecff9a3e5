"""Asking any OpenAI-compatible server whether its drafts, streams and repeats change an answer."""
