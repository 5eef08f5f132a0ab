"""Predictions, timelines and vectors of new videos by a finished run."""

DEFAULT_TOP = 5  # most probable classes of each video
