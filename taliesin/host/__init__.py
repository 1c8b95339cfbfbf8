"""This machine and its files: places, locks, durable writes, page cache, console."""
