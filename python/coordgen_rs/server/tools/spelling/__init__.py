"""How the arguments of a call are spelt: as JSON, or in another way that is turned into JSON."""
