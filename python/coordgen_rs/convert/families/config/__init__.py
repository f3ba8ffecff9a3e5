"""What the exporter must know of a model."""
