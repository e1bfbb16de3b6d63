"""Every error that a caller may see, and who is at fault.

::

    PserverError
    ├── RequestError             the caller's mistake; never retried
    │   ├── ConfigError          a setting that cannot work, refused at start
    │   ├── UnknownTableError    no table of that name
    │   ├── SpecMismatchError    a table of that name with another spec
    │   ├── DenseInitError       a dense table has no values yet, or has some already
    │   ├── UnauthenticatedError no token, or one that the server does not know
    │   ├── ForbiddenError       the token's role is not enough for the method or table
    │   ├── ShapeError           lengths, dtypes or bytes that do not fit
    │   └── NotFiniteError       NaN, infinity or a number too large to compute with
    ├── TransientError           the world's; the send queue retries until the deadline
    │   ├── UnavailableError     no connection, or the server is going down
    │   │   ├── StandbyError     the server is a standby, and takes no requests yet
    │   │   └── SupersededError  another server took this one's place
    │   ├── OverloadedError      a queue of the server is full
    │   ├── StorageError         the server's disk takes no more, so it changes nothing
    │   └── NotYetError          what it waits for has not come yet; asked again at once
    ├── TableFullError           no room for a new row
    ├── QuotaError               over what the server lets one table have
    ├── TableStoppedError        a table that takes no more pushes after a bad one
    ├── BusyError                a table is being walked over already
    ├── ClusterError             the servers do not form the cluster that was asked for
    │   └── RestartedError       a server came back without what it held
    ├── GroupError               this trainer is not, or no longer, one of the group
    │   └── BarrierError         a round cannot be closed: who is missing is named
    ├── StaleError               a push older than the window in which repeats are known
    ├── CheckpointError          damaged, missing, of a newer format, or not to be written
    ├── JournalError             damaged, incomplete, of another shard, or not to be read
    ├── DeadlineError            not answered in time
    └── InternalError            our own mistake

A message says where, what must hold, what came, and, if it is not plain, what to do.
"""

import difflib
from collections.abc import Iterable


class PserverError(Exception):
    """Base of all errors of this package."""


class RequestError(PserverError):
    """The caller's mistake. Nothing was applied; sending it again would fail again."""


class ConfigError(RequestError):
    """A setting that cannot work, refused before anything started."""


class UnknownTableError(RequestError):
    """No table of that name on the shard. Nothing was applied."""


class SpecMismatchError(RequestError):
    """A table of that name exists with another spec. It was left as it is."""


class DenseInitError(RequestError):
    """A dense table has no values yet, or was to get first values twice. Nothing was applied."""


class UnauthenticatedError(RequestError):
    """No token came, or none that the server knows. The request was not looked at."""


class ForbiddenError(RequestError):
    """The token's role is not enough for the method, or for a table. Nothing was applied."""


class ShapeError(RequestError):
    """Lengths, dtypes or bytes do not fit together. Nothing was applied."""


class NotFiniteError(RequestError):
    """NaN, infinity or a huge number in a gradient or weight. The whole message was refused."""


class TransientError(PserverError):
    """The world's failure. The send queue tries again until the deadline."""


class UnavailableError(TransientError):
    """No connection to a server, or it is draining."""


class StandbyError(UnavailableError):
    """The server follows another one and takes no requests until it is promoted."""


class SupersededError(UnavailableError):
    """Another server took this one's place, with a higher term. Nothing was applied."""


class OverloadedError(TransientError):
    """A queue of the server is full; it did not look at the request."""


class StorageError(TransientError):
    """The server could not write its journal, so it changed nothing; it goes on when there is room."""


class NotYetError(TransientError):
    """A round that other trainers have not finished. Nothing was done; the client asks again."""


class TableFullError(PserverError):
    """No room for a new row: raise ``capacity_max``. Nothing was applied."""


class QuotaError(PserverError):
    """More rows or bytes than the server's settings let a table have. Nothing was applied."""


class TableStoppedError(PserverError):
    """A push with NaN stopped a table whose ``on_nan`` is "fail". Nothing was applied."""


class BusyError(PserverError):
    """A table is being walked over already, by a shrink or a search. Nothing was begun."""


class ClusterError(PserverError):
    """The servers do not form the cluster that was asked for."""


class RestartedError(ClusterError):
    """A server came back as a new process without its tables; the run cannot go on."""


class GroupError(PserverError):
    """A trainer that may not join its group, or is no longer in it. Nothing was applied."""


class BarrierError(GroupError):
    """A round that cannot be closed; the message says why, and names who is missing."""


class StaleError(PserverError):
    """A push so old that the server no longer knows whether it was applied. It was refused."""


class CheckpointError(PserverError):
    """A checkpoint is damaged, missing, too new, or could not be written. Nothing was changed."""


class JournalError(PserverError):
    """A journal is damaged, has a gap, or belongs to another shard. Nothing was changed."""


class DeadlineError(PserverError):
    """Not answered in time. Whether the request was applied is not known."""


class InternalError(PserverError):
    """Our own mistake; the message of the server's exception is kept."""


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint that ends an error about an unknown name.

    >>> nearest("adagard", ["sgd", "adagrad", "adam"])
    "did you mean 'adagrad'? Valid: adagrad, adam, sgd"
    >>> nearest("x", ["sgd"])
    'valid: sgd'
    """
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}? Valid: {', '.join(names)}"
    return f"valid: {', '.join(names)}"
