"""What a float model does on real text, before it is quantised."""
