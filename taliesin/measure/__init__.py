"""Timings and experiments."""
