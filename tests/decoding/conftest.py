"""What the tests of videos share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.decoding.makers import make_video, read_numbers


@pytest.fixture(name="make_video", scope="session")
def make_video_fixture() -> Callable[..., Path]:
    return make_video


@pytest.fixture(name="read_numbers", scope="session")
def read_numbers_fixture() -> Callable[..., list[int]]:
    return read_numbers
