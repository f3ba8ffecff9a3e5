"""Energy of a stretch of work, from what the system tells."""
