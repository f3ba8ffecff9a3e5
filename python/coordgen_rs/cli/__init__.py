"""The command `coordgen`, a file a command: parse, call, print."""
