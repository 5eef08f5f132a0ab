"""VideoFile: the packets of a file that FFmpeg accepts as a video; other files are refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import av
from av.container import InputContainer
from av.container.core import Flags
from av.packet import Packet
from av.stream import Disposition
from av.video.stream import VideoStream

from clipset.errors import VideoError

MAX_SIDE = 16_384
MAX_PIXELS = 2**26
READ_ERRORS = (av.FFmpegError, OSError, ValueError, LookupError, RuntimeError, ArithmeticError)

# Containers with a video of their own: no playlists, no lists of files, no photographs.
CONTAINERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,asf,flv,live_flv,gif,ogg,"
    "m4v,h264,hevc,av1,obu,ivf,nut,mxf,dv,rm,wtv,apng,yuv4mpegpipe,mjpeg,nsv,swf"
)
SIGNATURES = (b"RIFF", b"\x1aE\xdf\xa3", b"FLV", b"GIF8", b"OggS", b"\0\0\1\xba", b"0&\xb2u")


class VideoFile:
    """A video file, open for reading packets."""

    def __init__(self, path: Path, threads: int) -> None:
        self.path = path
        self.threads = threads
        self.status = _read_status(path)
        self.container, self.stream = _open_stream(path, threads)

    def reopen(self) -> None:
        """Go back to the first packet, with a new codec context."""
        self.close()
        self.check_unchanged()
        self.container, self.stream = _open_stream(self.path, self.threads)

    def check_unchanged(self) -> None:
        """Raise VideoError if the path is another file now."""
        if _read_status(self.path) != self.status:
            raise VideoError("the file changed while it was read", transient=True)

    def packets(self) -> Iterator[Packet[VideoStream]]:
        """The non-empty packets, up to the end or the first read error."""
        try:
            for packet in self.container.demux(self.stream):
                if packet.size > 0:
                    yield packet
        except READ_ERRORS:
            return

    def close(self) -> None:
        self.container.close()


def _open_stream(path: Path, threads: int) -> tuple[InputContainer, VideoStream]:
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "file"}
    try:
        container = av.open(f"file:{path}", container_options=options, metadata_errors="replace")
    except READ_ERRORS as error:
        kind = "a broken video file" if _has_video_signature(path) else "not a video file"
        raise VideoError(f"{kind} ({_short_reason(error)})") from None
    container.flags &= ~cast(int, Flags.gen_pts.value)  # generated timestamps are unreliable
    try:
        return container, _video_stream(container, threads)
    except BaseException:
        container.close()
        raise


def _read_status(path: Path) -> tuple[int, int, int]:
    """Inode, size and modification time; raises VideoError, without opening it, if not a file."""
    try:
        status = path.stat()
    except OSError as error:
        raise VideoError(_plain_reason(error), transient=True) from None
    except ValueError:
        raise VideoError("its path holds a NUL character") from None
    if stat.S_ISDIR(status.st_mode):
        raise VideoError("is a directory")
    if not stat.S_ISREG(status.st_mode):
        raise VideoError("is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoError("permission denied", transient=True)
    if status.st_size == 0:
        raise VideoError("empty file")
    return status.st_ino, status.st_size, status.st_mtime_ns


def _has_video_signature(path: Path) -> bool:
    with path.open("rb") as file:
        start = file.read(12)
    return start[4:8] in (b"ftyp", b"moov", b"mdat") or start.startswith(SIGNATURES)


def _plain_reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower().replace("file or directory", "file")


def _short_reason(error: Exception) -> str:
    text = getattr(error, "strerror", None) or type(error).__name__
    return str(text).lower().replace(" found when processing input", "")


def _video_stream(container: InputContainer, threads: int) -> VideoStream:
    """The main video stream, ready to decode; not a cover or thumbnails."""
    if len(container.streams) == 0:
        raise VideoError("a broken video file (no streams)")
    still = Disposition.attached_pic | Disposition.timed_thumbnails | Disposition.still_image
    streams = [stream for stream in container.streams.video if not stream.disposition & still]
    if not streams:
        raise VideoError("no video stream")
    best = container.streams.best("video")
    stream = next((stream for stream in streams if stream is best), streams[0])
    if stream.codec_context is None:
        raise VideoError("no decoder for this codec")
    check_size(stream.codec_context.width, stream.codec_context.height)
    stream.codec_context.thread_count = threads
    stream.codec_context.copy_opaque = True
    stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
    return stream


def check_size(width: int, height: int) -> None:
    """Raise VideoError for frames that would take too much memory."""
    if width > MAX_SIDE or height > MAX_SIDE or width * height > MAX_PIXELS:
        raise VideoError(f"frames of {width}×{height} are too large")
