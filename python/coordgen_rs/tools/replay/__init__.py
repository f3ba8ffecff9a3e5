"""Drafting methods on recorded answers, without a model."""
