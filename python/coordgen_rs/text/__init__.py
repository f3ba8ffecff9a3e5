"""Text: of prompts and answers, and for people at a terminal."""
