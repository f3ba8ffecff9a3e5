"""Reading files that come from outside."""
