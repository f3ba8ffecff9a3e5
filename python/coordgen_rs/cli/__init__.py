"""The command `coordgen`, one file per command: parse, call, print."""
