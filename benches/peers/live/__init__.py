"""A real model's peers, live: each engine in a process of its own, on the same token ids."""
