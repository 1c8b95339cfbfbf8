"""Problems, their golds, templates, solutions and variants."""
