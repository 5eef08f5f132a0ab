"""clipset: learn from sets of clips, and get better video features from any frozen backbone."""
