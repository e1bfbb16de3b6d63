"""The errors that collectives raise, as one tree.

::

    CollectiveError
    ├── GroupError           ranks, sizes or names that cannot form a group
    ├── MissingRanksError    ranks that did not come in time, or that went away
    ├── PeerLostError        a trainer of a heterogeneous run that went away
    ├── StageError           another rank's stage of a pipeline raised
    ├── DivergedError        ranks whose values must be equal and are not
    └── TensorError          a tensor that cannot be reduced

A message says which operation, what must hold, what came and what to do.
"""

import difflib
from collections.abc import Iterable, Sequence


class CollectiveError(Exception):
    """Base of all errors of this package."""


class GroupError(CollectiveError):
    """Ranks, sizes or names that cannot form a group; nothing was sent."""


class TensorError(CollectiveError):
    """A tensor that cannot be reduced: dtype, device or layout. Nothing was sent."""


class MissingRanksError(CollectiveError):
    """Some ranks did not take part in time, or their connection broke.

    The tensors of the operation hold neither the old nor the new values: the group is of no more
    use, and the process should end, so that a launcher can start the ranks again.

    Attributes:
        missing: the ranks that are known not to have come; empty if nobody could tell.
    """

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        """Take the message and the ranks."""
        super().__init__(message)
        self.missing = tuple(missing)


class StageError(CollectiveError):
    """Another rank's part of a pipeline raised; the message holds what, the exception is there.

    The step is lost on all ranks, and the pipeline is of no more use.

    Attributes:
        rank: of the run, on which it raised.
    """

    def __init__(self, message: str, rank: int) -> None:
        """Take the message and the rank."""
        super().__init__(message)
        self.rank = rank


class PeerLostError(CollectiveError):
    """A trainer of a heterogeneous run went away, or did not come within the limit.

    What it held is lost with it; the process should end, so that a launcher can start all again.
    """


class DivergedError(CollectiveError):
    """Ranks whose values must be equal have different ones; raised on all of them.

    Attributes:
        ranks: those that differ from most.
    """

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        """Take the message and the ranks."""
        super().__init__(message)
        self.ranks = tuple(ranks)


def no_module(what: str, name: str, known: Iterable[str]) -> GroupError:
    """Return the error of a name that is no module's, with the nearest one that is.

    Args:
        what: what the name was given for, such as ``layer``.
        name: as it was given.
        known: names of modules.

    >>> print(no_module("layer", "block.0", ["blocks.0", "top"]))
    layer 'block.0' is no module of the model; did you mean 'blocks.0'
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"; did you mean {near[0]!r}" if near else ""
    return GroupError(f"{what} {name!r} is no module of the model{hint}")
