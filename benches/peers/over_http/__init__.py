"""Servers that many clients ask at a time: how they are started, asked and timed."""
