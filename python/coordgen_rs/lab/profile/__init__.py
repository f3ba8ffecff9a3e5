"""What each block takes to load and to compute on this device, and how much memory."""
