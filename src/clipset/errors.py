"""The errors that clipset raises on purpose.

Each message names the value, the bound and the remedy. The command line prints it as one
line and exits with `exit_code`; anything that is not a ClipsetError is a bug and shows its
traceback.
"""


class ClipsetError(Exception):
    """The base class of all errors of clipset."""

    exit_code = 2


class ConfigError(ClipsetError):
    """A recipe or an option that does not fit."""


class OutputError(ClipsetError, OSError):
    """A file or folder that cannot be written: `problem` says which and why, `advice` what to do.

    It is an OSError, too, and `strerror` is the system's own reason.
    """

    def __init__(self, problem: str, advice: str, reason: str = "") -> None:
        super().__init__(0, reason or problem)
        self.problem, self.advice = problem, advice

    def __str__(self) -> str:
        return f"{self.problem}; {self.advice}"


class RunError(ClipsetError):
    """A run's folder that cannot be used."""


class LockError(ClipsetError):
    """A folder that another process is writing to, or that cannot be locked."""


class CatalogError(ClipsetError):
    """A list of videos that cannot be read or does not hold together."""


class VideoError(ClipsetError):
    """A file that cannot be read as a video; the message is short enough for a table.

    `transient` says that the cause may be gone at the next try: a missing file, a timeout.
    """

    def __init__(self, reason: str, *, transient: bool = False) -> None:
        super().__init__(reason)
        self.transient = transient


class ClipError(ClipsetError):
    """A clip that cannot exist."""


class BackboneError(ClipsetError):
    """A backbone that is unknown, or whose weights are missing or wrong."""


class StoreError(ClipsetError):
    """A feature store that is missing, broken, or made in another way."""


class NothingReadError(StoreError):
    """The work was done, but not one video could be read."""

    exit_code = 1


class ModelError(ClipsetError):
    """A model that cannot be built or loaded."""


class TrainingError(ClipsetError):
    """A training run that cannot start or resume."""


class OtherRankError(TrainingError):
    """What ends this process is an error of another one, which says it."""


class ProbeError(ClipsetError):
    """A probe that has nothing to learn from or to be judged by."""


class LabelError(ClipsetError):
    """A label, a span or a log of labels that cannot be used."""


class SearchError(ClipsetError):
    """A search that cannot be done: an unknown video, an empty filter, no vectors."""


class ReportError(ClipsetError):
    """A report that cannot be written."""


class StreamError(ClipsetError):
    """A result that standard output does not take; empty if its reader has gone."""


def error_line(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
