"""The commands that answer: generate, chat, serve, and what they stand on."""
