"""Every error that clipset raises on purpose, in one tree.

Each message says what was given, what is allowed, and what to do. The command line prints it as one
line and exits with `exit_code`; anything that is not a ClipsetError is a bug and shows its
traceback.
"""


class ClipsetError(Exception):
    """The root: catch this to catch everything that clipset says on purpose."""

    exit_code = 2


class ConfigError(ClipsetError):
    """A recipe or an option that does not fit."""


class RunError(ClipsetError):
    """A run's folder that cannot be used."""


class CatalogError(ClipsetError):
    """A list of videos that cannot be read or does not hold together."""


class VideoError(ClipsetError):
    """A file that cannot be read as a video; `reason` is short enough for a table."""


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
    """A training run that cannot start or go on."""


class OtherRankError(TrainingError):
    """What ends this process is an error of another one, which says it."""


class ProbeError(ClipsetError):
    """A probe that has nothing to learn from or to be judged by."""


class ReportError(ClipsetError):
    """A report that cannot be written."""
