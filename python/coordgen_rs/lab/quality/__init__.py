"""What each kind of weights costs, in bytes and in fidelity."""
