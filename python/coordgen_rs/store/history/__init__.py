"""Finished requests, kept on disk, to draft from."""
