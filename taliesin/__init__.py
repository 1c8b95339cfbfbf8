"""Byte-exact KV blocks on llama.cpp: save a prefilled token block, graft it back at the same token offset, prove it."""

__version__ = "0.1.0"
