"""What the bench says: tables, plots, JSON, and the condition of the machine."""
