"""Recorded answers play the target, so that drafters are measured without a model."""
