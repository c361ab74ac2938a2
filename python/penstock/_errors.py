"""The exceptions of the package: one for each status code that callers tell apart."""


class Error(RuntimeError):
    """What went wrong in Penstock. `code` is the name of the status code, as in absl::Status."""

    code = "UNKNOWN"


class InvalidArgumentError(Error, ValueError):
    """A graph, a strategy, an option or a feed is wrong; the message says which and why."""

    code = "INVALID_ARGUMENT"


class NotFoundError(Error, KeyError):
    """There is no such state, file or name."""

    code = "NOT_FOUND"

    __str__ = Error.__str__  # KeyError would quote it


class DeadlineExceededError(Error, TimeoutError):
    """A step did not complete in time. The session has ended."""

    code = "DEADLINE_EXCEEDED"


class ResourceExhaustedError(Error, MemoryError):
    """There is too little memory, or too many steps are under way."""

    code = "RESOURCE_EXHAUSTED"


class UnimplementedError(Error, NotImplementedError):
    """An operator does not take a type, or a plan needs what this build does not have."""

    code = "UNIMPLEMENTED"


class FailedPreconditionError(Error):
    """The call does not fit the state of the session."""

    code = "FAILED_PRECONDITION"


class CancelledError(Error):
    """The session was stopped."""

    code = "CANCELLED"


class DataLossError(Error):
    """Stored data are damaged."""

    code = "DATA_LOSS"


_BY_CODE = {kind.code: kind for kind in (
    InvalidArgumentError, NotFoundError, DeadlineExceededError, ResourceExhaustedError,
    UnimplementedError, FailedPreconditionError, CancelledError, DataLossError)}


def from_status(code, message):
    """The exception of a status, given the name of its code."""
    error = _BY_CODE.get(code, Error)(message)
    error.code = code
    return error
