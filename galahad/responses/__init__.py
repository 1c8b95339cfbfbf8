"""What a model's text says: integers, programs."""
