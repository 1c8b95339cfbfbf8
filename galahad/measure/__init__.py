"""Arms, statistics, energy."""
