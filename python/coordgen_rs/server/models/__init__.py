"""The models of a server: which there are, which are open, and what they may take of memory."""
