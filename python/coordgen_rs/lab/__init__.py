"""What measures: nothing that answers imports it."""
