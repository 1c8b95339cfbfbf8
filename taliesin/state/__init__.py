"""llama.cpp's bytes as structure: what a state holds, and where each cell must lie. Pure: no model,
no library.
"""
