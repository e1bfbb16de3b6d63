"""Errors over the wire: one table from error class to gRPC status, read in both directions.

Rooms before and after: the server's handlers call ``to_status``; ``client.channel`` calls
``from_status``. The class travels by name in trailing metadata, since several classes share a
code; a status without that name comes from gRPC itself and is mapped by its code.
"""

from collections.abc import Iterable

import grpc

from pserver import errors

ERROR_KEY = "pserver-error"
"""Trailing metadata that names the error class."""

_CODES: dict[type[errors.PserverError], grpc.StatusCode] = {
    errors.RequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.UnknownTableError: grpc.StatusCode.NOT_FOUND,
    errors.SpecMismatchError: grpc.StatusCode.ALREADY_EXISTS,
    errors.DenseInitError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.UnauthenticatedError: grpc.StatusCode.UNAUTHENTICATED,
    errors.ForbiddenError: grpc.StatusCode.PERMISSION_DENIED,
    errors.ShapeError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFiniteError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.TransientError: grpc.StatusCode.UNAVAILABLE,
    errors.UnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.StandbyError: grpc.StatusCode.UNAVAILABLE,
    errors.SupersededError: grpc.StatusCode.UNAVAILABLE,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.StorageError: grpc.StatusCode.UNAVAILABLE,
    errors.NotYetError: grpc.StatusCode.UNAVAILABLE,
    errors.TableFullError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.QuotaError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TableStoppedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BusyError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ClusterError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RestartedError: grpc.StatusCode.ABORTED,
    errors.GroupError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.BarrierError: grpc.StatusCode.ABORTED,
    errors.StaleError: grpc.StatusCode.OUT_OF_RANGE,
    errors.CheckpointError: grpc.StatusCode.DATA_LOSS,
    errors.JournalError: grpc.StatusCode.DATA_LOSS,
    errors.DeadlineError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.InternalError: grpc.StatusCode.INTERNAL,
    errors.PserverError: grpc.StatusCode.UNKNOWN,
}

_CLASSES = {kind.__name__: kind for kind in _CODES}

_BY_CODE: dict[grpc.StatusCode, type[errors.PserverError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ClusterError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.RequestError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.ForbiddenError,
}


def to_status(error: BaseException) -> tuple[grpc.StatusCode, str, str]:
    """Return the code, the message and the class name that stand for an error.

    What is not of our tree is our own mistake and becomes ``InternalError``.
    """
    if isinstance(error, errors.PserverError):
        return _CODES[type(error)], str(error), type(error).__name__
    return grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}", "InternalError"


def from_status(
    code: grpc.StatusCode, message: str, metadata: Iterable[tuple[str, str | bytes]]
) -> errors.PserverError:
    """Return the error that a status stands for."""
    name = next((str(value) for key, value in metadata if key == ERROR_KEY), "")
    kind = _CLASSES.get(name) or _BY_CODE.get(code, errors.InternalError)
    return kind(message)
