"""Energy of a run, from the system's own meters."""
