"""Ollama's API: its requests, the shapes of its answers, and what it tells of models."""
