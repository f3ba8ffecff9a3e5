"""How threads begin and wait for each other, so that no Ctrl-C leaves anything behind."""
