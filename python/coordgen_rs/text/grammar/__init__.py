"""Answers that follow a grammar: a JSON schema, a regular expression, Lark or GBNF."""
