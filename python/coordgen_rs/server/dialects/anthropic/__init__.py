"""Anthropic's Messages API: its requests, and the shapes of its answers."""
