"""Demo videos: real MP4 files in which the same four events happen and the class is their order."""
