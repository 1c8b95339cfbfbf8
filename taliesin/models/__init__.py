"""Which model file is meant: the catalogue, downloads, hashes."""
