"""What is kept on disk: earlier requests, documents and conversions, and how files are written."""
