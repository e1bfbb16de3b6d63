"""A text such as a folder or ``s3://bucket/run`` to the store that it names.

Rooms before and after: command lines and ``server.app`` bring the text; ``local`` and ``remote`` are what
it may be.
"""

from typing import overload

from pserver.checkpoint.local import open_local
from pserver.checkpoint.remote import open_remote
from pserver.checkpoint.store import Store


@overload
def open_store(text: str, *, where: str, writes: bool) -> Store: ...


@overload
def open_store(text: None, *, where: str, writes: bool) -> None: ...


@overload
def open_store(text: str | None, *, where: str, writes: bool) -> Store | None: ...


def open_store(text: str | None, *, where: str, writes: bool) -> Store | None:
    """Return the store of a place, or None if there is none.

    Args:
        text: a folder, a URL that fsspec knows, or None.
        where: named in an error, such as ``--checkpoint-dir``.
        writes: make the place if need be, and prove that files can be written there.

    Raises:
        ConfigError: the place is not there, or it cannot be written; it and the user are named.
    """
    if text is None:
        return None
    opens = open_remote if "://" in text else open_local
    return opens(text, where=where, writes=writes)
