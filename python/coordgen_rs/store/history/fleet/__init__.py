"""Finished requests of many machines, as indexes that each machine reads beside its own history."""
