"""What Qualcomm's context binaries tell of their graphs."""
