"""Files with random damage: every one is either read or refused with a short reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.decoding.makers import make_video

from clipset.decoding.reader import open_video
from clipset.errors import VideoError

KINDS = {
    "a.mp4": {"options": {"x264-params": "bframes=2:keyint=5"}},
    "a.mkv": {"options": {"x264-params": "bframes=2:keyint=5"}},
    "a.avi": {"codec": "mpeg4", "options": {"bf": "2", "g": "5"}},
    "a.ts": {"codec": "mpeg2video"},
    "a.gif": {"codec": "gif", "pix_fmt": "rgb8"},
    "a.flv": {"codec": "flv"},
}
SIGNATURES = (
    b"", b"\0\0\0\x18ftypmp42", b"RIFF\xff\0\0\0AVI LIST", b"\x1aE\xdf\xa3", b"GIF89a", b"FLV\1"
)  # fmt: skip
DAMAGE = st.lists(  # where (as a share of the file) and which byte
    st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=12
)


@pytest.fixture(scope="module", params=KINDS)
def whole(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("fuzz")
    return make_video(folder / request.param, count=12, **KINDS[request.param])


def read_or_refuse(path: Path) -> None:
    """Read a few frames; what they are does not matter, that nothing else happens does."""
    reason = "read"
    try:
        with open_video(path) as video:
            times = video.info.frame_times
            assert np.isfinite(times).all()
            assert times[0] == 0.0
            assert (np.diff(times) > 0).all()
            assert video.info.duration > times[-1]
            indices = sorted({0, len(times) // 2, len(times) - 1})
            frames = list(video.frames(indices, short_side=16))
            assert [number for number, _ in frames] == indices
            assert len({pixels.shape for _, pixels in frames}) == 1
            assert video.needed_frames == set(indices)
    except VideoError as error:
        reason = str(error)
    assert 0 < len(reason) < 80
    assert "\n" not in reason


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(damage=DAMAGE, in_header=st.booleans())
def test_a_damaged_file_is_read_or_refused(
    whole: Path, damage: list[tuple[float, int]], in_header: bool
) -> None:
    content = bytearray(whole.read_bytes())
    reach = min(len(content), 1500) if in_header else len(content)
    for share, byte in damage:
        content[int(share * reach)] = byte
    path = whole.with_name(f"damaged{whole.suffix}")
    path.write_bytes(content)
    read_or_refuse(path)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    content=st.binary(max_size=300),
    signature=st.sampled_from(
        [
            b"",
            b"\0\0\0\x18ftypmp42",
            b"RIFF\xff\0\0\0AVI LIST",
            b"\x1aE\xdf\xa3",
            b"GIF89a",
            b"FLV\1",
        ]
    ),
)
def test_random_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, signature: bytes, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "random.mp4"
    path.write_bytes(signature + content)
    read_or_refuse(path)
