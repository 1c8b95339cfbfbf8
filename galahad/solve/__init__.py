"""Solve a suite: routes, run, log, summary."""
