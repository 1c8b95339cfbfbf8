"""Which block answers a question."""
