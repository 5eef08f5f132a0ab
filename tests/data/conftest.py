"""What the tests of videos share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.makers import make_video, seen


@pytest.fixture(name="make_video", scope="session")
def make_video_fixture() -> Callable[..., Path]:
    return make_video


@pytest.fixture(name="seen", scope="session")
def seen_fixture() -> Callable[..., list[int]]:
    return seen
