"""From a path to a session: which directory it is, what runs it, whether it is exact here."""
