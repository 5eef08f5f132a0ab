"""`clipset serve`: a run as a page and an HTTP API, on this machine."""
