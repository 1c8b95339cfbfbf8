"""One door to a model."""
