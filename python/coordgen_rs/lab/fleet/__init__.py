"""The indexes of a fleet, made from its devices' finished requests."""
