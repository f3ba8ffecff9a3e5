"""Tables of methods over settings: measured or replayed, kept cell by cell."""
