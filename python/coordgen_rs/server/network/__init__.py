"""Connections: who may come, how many, and whether they are still there."""
