"""What a client asks for, checked and turned into a request."""
