"""Answers that follow a grammar: a JSON schema, a regular expression, or Lark."""
