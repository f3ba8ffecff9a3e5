"""Measuring what the blocks of a bundle cost on this machine."""
