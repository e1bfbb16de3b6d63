"""What ``status`` promises: one status an error, both ways, for the whole tree."""

import grpc
import pytest

from pserver import errors, status
from pserver.errors import PserverError
from pserver.status import ERROR_KEY, from_status, to_status


def tree(kind: type[PserverError]) -> list[type[PserverError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in tree(child))]


TREE = [kind for kind in tree(PserverError) if kind.__module__ == errors.__name__]


def test_the_table_is_the_tree_when_both_are_walked() -> None:
    """Every error has a status, and every entry is an error of the tree."""
    assert set(status._CODES) == set(TREE)
    assert len(status._CLASSES) == len(TREE)
    assert grpc.StatusCode.OK not in status._CODES.values()


@pytest.mark.parametrize("kind", TREE)
def test_an_error_comes_back_when_it_crosses_the_wire(kind: type[PserverError]) -> None:
    """Class and message survive the way to a status and back, beside other metadata."""
    code, message, name = to_status(kind("pull 'ads': no"))

    back = from_status(code, message, [("other", b"x"), (ERROR_KEY, name)])

    assert type(back) is kind
    assert str(back) == "pull 'ads': no"


CODES: dict[type[PserverError], str] = {
    errors.UnknownTableError: "NOT_FOUND",
    errors.SpecMismatchError: "ALREADY_EXISTS",
    errors.ShapeError: "INVALID_ARGUMENT",
    errors.UnavailableError: "UNAVAILABLE",
    errors.OverloadedError: "RESOURCE_EXHAUSTED",
    errors.StorageError: "UNAVAILABLE",
    errors.JournalError: "DATA_LOSS",
    errors.TableFullError: "FAILED_PRECONDITION",
    errors.TableStoppedError: "FAILED_PRECONDITION",
    errors.BusyError: "FAILED_PRECONDITION",
    errors.DeadlineError: "DEADLINE_EXCEEDED",
    errors.InternalError: "INTERNAL",
}


@pytest.mark.parametrize("kind", CODES)
def test_the_code_is_the_promised_one_when_others_read_it(kind: type[PserverError]) -> None:
    """Clients of other languages see the code that the contract names."""
    assert to_status(kind("x"))[0] is grpc.StatusCode[CODES[kind]]


def test_a_foreign_exception_is_our_own_mistake_when_it_gets_out() -> None:
    """What is not of the tree becomes InternalError and keeps its kind and message."""
    code, message, name = to_status(ZeroDivisionError("division by zero"))

    assert (code, message) == (grpc.StatusCode.INTERNAL, "ZeroDivisionError: division by zero")
    assert type(from_status(code, message, [(ERROR_KEY, name)])) is errors.InternalError


NAMELESS: dict[grpc.StatusCode, type[PserverError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineError,
    grpc.StatusCode.UNIMPLEMENTED: errors.ClusterError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.RequestError,
    grpc.StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: errors.ForbiddenError,
}


@pytest.mark.parametrize("code", list(grpc.StatusCode))
@pytest.mark.parametrize("metadata", [[], [(ERROR_KEY, "NoSuchError")]])
def test_a_status_is_read_by_its_code_when_no_class_is_named(
    code: grpc.StatusCode, metadata: list[tuple[str, str | bytes]]
) -> None:
    """A status that gRPC itself made is the error of its code; any other is our own mistake."""
    error = from_status(code, "gone", metadata)

    assert type(error) is NAMELESS.get(code, errors.InternalError)
    assert str(error) == "gone"
