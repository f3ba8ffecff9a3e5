"""Reading files that come from outside, and writing files that others read."""
