"""The files of a library: blocks, names, index, bundles."""
