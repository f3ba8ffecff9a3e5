"""The commands of the tools; the command line loads each when it is asked for."""
