"""What people see in a terminal, and what they type there."""
