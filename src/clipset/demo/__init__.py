"""Demo videos: real MP4 files in which the same four events happen and the class is their order."""

from clipset.demo.render import render_demo
from clipset.demo.story import CLASSES, KINDS, Event, timeline

__all__ = ["CLASSES", "KINDS", "Event", "render_demo", "timeline"]
