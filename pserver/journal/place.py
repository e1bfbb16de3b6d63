"""What a journal's folder says of the server's place: its term, and who may have taken the place.

Rooms before and after: ``server.fence`` reads it at start and writes it when it changes.

``PLACE.json`` is one object. Without it a server has term 1, was never followed, and follows nobody. It lies
beside the records and not in them: a standby's records are those of the server that it follows.

What always holds: what it says is on the disk before anything is answered that rests on it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from pserver.errors import JournalError
from pserver.journal.folder import write_json

_FILE = "PLACE.json"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of whoever writes a journal.

    Attributes:
        term: of the server; each promotion is a higher one.
        newer: the term of the server that took its place; 0: nobody that is known of.
        followed_by: the name of the one standby that may take the place unseen; 0: none may.
        role: ``shard``: it began as one; ``standby``: it follows; ``promoted``: it followed, and took the place.
        name: of a standby, drawn when it first follows; 0: none.
        has_left: whether a standby told its server that it ends, and did not hear from it since.
    """

    term: int = 1
    newer: int = 0
    followed_by: int = 0
    role: Literal["shard", "standby", "promoted"] = "shard"
    name: int = 0
    has_left: bool = False

    @property
    def is_followed(self) -> bool:
        """Return whether a standby may have taken the place."""
        return self.followed_by != 0

    @property
    def is_of_a_pair(self) -> bool:
        """Return whether another server may have the place, or had it before."""
        return self.is_followed or self.term > 1


def read_place(folder: Path) -> Place:
    """Return what a folder says.

    Raises:
        JournalError: the file is damaged: whether the place was taken is not known.
    """
    path = folder / _FILE
    try:
        return Place(**json.loads(path.read_text()))
    except FileNotFoundError:
        return Place()
    except (OSError, ValueError, TypeError) as error:
        raise JournalError(
            f"{path}: cannot be read ({error}); it says whether another server took this one's place. "
            "If none did, remove it"
        ) from error


def write_place(folder: Path, place: Place) -> None:
    """Say it, durably.

    Raises:
        JournalError: the system refused.
    """
    write_json(folder, _FILE, asdict(place))
