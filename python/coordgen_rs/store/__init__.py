"""What is kept on disk: earlier text, prefixes and conversions, and how files are written."""
