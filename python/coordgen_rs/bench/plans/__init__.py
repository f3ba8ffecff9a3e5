"""Plans compared: over a grid of profiles, as pictures, and through a simulated answer."""
