"""Text: prompts and answers, and output for people at a terminal."""
