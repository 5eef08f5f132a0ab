"""The report of a run: one HTML page that opens offline."""
