"""Is it exact: verify, shift, rebuild."""
