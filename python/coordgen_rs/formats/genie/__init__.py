"""Genie's folders, and QNN models among those of GenAI: graphs that come compiled."""
