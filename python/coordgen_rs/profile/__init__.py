"""What the blocks of a bundle cost on a device, as a file, and plans made from it."""
