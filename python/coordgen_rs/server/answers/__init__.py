"""Answers as a client reads them, whole or as a stream of events."""
