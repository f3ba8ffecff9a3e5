"""Plans of a prompt's prefill from a profile: one, all, and as a picture."""
