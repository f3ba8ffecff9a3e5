"""What all sections of the bench measure with."""
