"""LiveBench: old questions as library, new ones as test."""
