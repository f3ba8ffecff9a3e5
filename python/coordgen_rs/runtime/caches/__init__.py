"""What a target has committed: keys and values, and states of recurrent layers."""
