"""What the exporter must know of a model, and how fields that tell of it are read."""
