"""The errors that a trainer raises, as one tree.

Rooms before and after: every room of ``trainer`` raises from here; ``cli`` turns an error into
one line on the screen. Errors of the parameter servers are ``pserver``'s own tree.

What always holds:
    * A message says where, what must hold, what came and, if it is not plain, what to do.

TrainerError
└── DataError    the data set: a file, a line or an array that is not what was promised
"""


class TrainerError(Exception):
    """Anything that stops a trainer and that its user can put right."""


class DataError(TrainerError):
    """The data set holds something that it must not hold; the message names the place."""
