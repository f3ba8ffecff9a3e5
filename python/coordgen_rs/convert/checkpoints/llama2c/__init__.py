"""Checkpoints of llama2.c."""
