"""One exception tree. Leaves are also the builtin a caller would expect; all survive pickling.

A message says what was expected, what came, and the command or key that mends it; `fix` holds the
last part so that the command line can set it apart. Not here: verdicts (a wrong answer is data).
"""

from __future__ import annotations


class BroadenError(Exception):
    """Root of everything that broaden raises on purpose.

    Args:
        message: what was expected and what was found.
        fix: the command, key or action that mends it ("" where there is none).
    """

    exit_code = 1

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class UsageError(BroadenError, ValueError):
    """The user asked for something that cannot be: found before any compute (exit code 2)."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration key or value that is not accepted."""


class DataError(UsageError):
    """A data set whose shape or content cannot be used; names file, line or column."""


class UnreachableError(DataError):
    """Data that does not lie on this machine and could not be, or was not to be, fetched."""


class MissingFileError(UsageError, FileNotFoundError):
    """A path that should exist and does not."""


class ModelError(UsageError):
    """A model folder that cannot be loaded as asked (no tokenizer, pickle only, wrong family)."""


class ResumeError(UsageError):
    """A run that cannot be continued as asked: changed config, data or model (with a diff)."""


class MetricError(BroadenError, ValueError):
    """A metric that is not defined on these counts (K > M, samples missing)."""

    exit_code = 2


class StoreError(BroadenError, OSError):
    """Writing or reading a run directory failed; what was committed before is intact."""


class ExistsError(StoreError, FileExistsError):
    """Something is there already where output was to go, and would have to be overwritten (exit code 2)."""

    exit_code = 2


class DivergedError(BroadenError, ArithmeticError):
    """Training left the finite numbers or collapsed; the last good center is kept."""


class ExactnessError(BroadenError, AssertionError):
    """A hash or a self-test that must hold bit for bit does not."""


class WorkerError(BroadenError, RuntimeError):
    """A worker process died or answered what it should not."""


class RewardError(BroadenError, ValueError):
    """A user's reward function returned the wrong length, NaN, or raised."""


class Interrupted(BroadenError):
    """Ctrl-C or SIGTERM: state is saved, and `fix` says how to go on (exit code 130)."""

    exit_code = 130
