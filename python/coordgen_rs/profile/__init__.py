"""What a device's blocks cost, as a file, and plans made by it."""
