"""What makes bundles and what measures: nothing that answers imports it."""
