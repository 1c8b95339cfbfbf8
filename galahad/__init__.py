"""The flywheel on `taliesin`: solve, verify by running code, bank the verified solution as a KV
block, recall or transfer it.
"""
