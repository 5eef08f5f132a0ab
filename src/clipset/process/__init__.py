"""The process itself: standard streams, Ctrl-C, locks, and isolated child processes."""
