"""The numbers that tell the model where a clip is."""

import numpy as np
import pytest

from clipset.clips.box import ClipBox
from clipset.sets.boxes import paper_boxes


def test_boxes_are_relative_to_the_video_as_in_equation_5() -> None:
    box = ClipBox(start=2.0, end=4.0, top=0.1, left=0.2, bottom=0.6, right=0.9, flipped=True)
    rows = np.array([[box.as_row()]], dtype=np.float32)
    found = paper_boxes(rows, np.array([8.0]))[0, 0]
    assert found.tolist() == pytest.approx([0.1, 0.2, 0.25, 0.6, 0.9, 0.5])


def test_the_whole_video_is_the_unit_box() -> None:
    rows = np.array([[ClipBox(start=0.0, end=3.0).as_row()]], dtype=np.float32)
    assert paper_boxes(rows, np.array([3.0])).tolist() == [[[0, 0, 0, 1, 1, 1]]]
