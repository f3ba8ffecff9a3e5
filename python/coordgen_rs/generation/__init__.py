"""The algorithm: prompts' tokens in, the target's tokens out, and what a request took."""
