"""A bundle: the directory that holds a target ready to run, and its manifest."""
