"""Prefixes of earlier requests, kept in memory, and on disk by content."""
