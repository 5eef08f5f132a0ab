"""Pre-training of backbone and set transformer together, from the videos themselves."""
