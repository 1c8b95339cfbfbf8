"""What may be believed: plans, comparisons, costs, pages."""
