"""A whole table of the paper on your data, next to the paper's own numbers."""
