"""The syntax of a call's arguments: JSON, or another one that is turned into JSON."""
