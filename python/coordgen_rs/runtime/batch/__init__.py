"""Several requests in one step of a target: sequences, each a session, and their runs."""
