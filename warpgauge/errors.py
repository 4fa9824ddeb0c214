"""One base class, one class per cause that a caller can act on.

Every message says what was found, what is needed and what to do. `exit_code` is what the command line
answers for the cause: 2 where the user's settings or inputs stop the work before it starts, 3 where the
work ran and something was refused or a service was away.
"""


class WarpgaugeError(Exception):
    """Base of every error that a user can act on; anything else is a bug and shows its traceback."""

    exit_code = 2


class SettingsError(WarpgaugeError):
    """A setting, an option or an environment name is wrong."""


class SourceFileError(WarpgaugeError):
    """An input file is missing, cut, malformed, of the wrong kind or hostile; nothing of it was kept."""


class SourceUnavailableError(WarpgaugeError):
    """A source cannot be reached or offers nothing on this machine (no driver, no network, no such package)."""


class NoDataError(WarpgaugeError):
    """Nothing could be collected, or a table or batch holds no rows: not the same as bad data."""


class SchemaError(WarpgaugeError):
    """A frame does not fit its table: a column is missing, extra, renamed or of another type."""


class DataRefusedError(WarpgaugeError):
    """Data were read and checked, and too much of them is bad."""

    exit_code = 3


class CheckNotEvaluableError(WarpgaugeError):
    """A check could not run, so nothing is known about the data: neither good nor bad."""

    exit_code = 3


class WindowError(WarpgaugeError):
    """A window is too small or unfit for the statistic asked of it."""


class QuantityError(WarpgaugeError):
    """A physical quantity is impossible: negative, not finite, or of a link or access that no hardware has."""


class TrainingError(WarpgaugeError):
    """The data are valid and still cannot teach a model (one class, too few groups, no label)."""


class ModelFileError(WarpgaugeError):
    """A model's files are truncated, altered or incomplete; they were not loaded."""


class ModelNotFoundError(WarpgaugeError):
    """No version of a registered model answers to the name or alias asked for."""


class ServiceUnavailableError(WarpgaugeError):
    """Prefect, MLflow, a disk or another service that the work needs did not answer."""

    exit_code = 3
