"""Drafting rules of other engines on recorded answers: no model runs."""
