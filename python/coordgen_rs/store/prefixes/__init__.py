"""Prefixes of earlier requests on disk, by content, which outlast the process."""
