"""What blocks cost on a device, as a file, and plans based on it."""
