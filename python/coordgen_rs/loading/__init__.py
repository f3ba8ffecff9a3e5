"""From a path to a session: which directory or checkpoint it is, what runs it, whether exactly."""
