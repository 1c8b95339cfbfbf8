"""Verified solutions as blocks: bank, recall, transfer."""
