"""Who may do what: the tokens of a server, and the one place where each call is judged.

Rooms before and after: ``app`` asks before the servicer sees a message; ``methods`` says which role a method
needs, ``named`` which tables a message is about; ``audit`` is told who it was.

The file is TOML, a table a token, each with a role, roles for single tables, or both::

    [trainers]                       # the name stands in audit lines; the token nowhere
    token = "at least 16 characters, no spaces"
    role = "train"                   # read, train or admin; each includes those before it

    [ranker]
    token_sha256 = "64 hexadecimal digits"   # instead of the token itself
    tables = { ads = "read", users = "train" }   # and nothing on other tables, as it has no role

What always holds:
    * A call without a token that is known, or with too low a role, is refused before anything of it is applied.
    * A token appears in no log, error, metric or status: its name does.
    * What a call brings is compared by its digest with every token, in constant time. Only tokens that were
      found are remembered by their text, so that a call costs a look into a dictionary.
    * A file that changes is read again within a second; one that cannot be used is told of, and what was read
      before stays in force.
Owner: the event loop.

Cost: 1 µs a call (51 tokens); with roles by table, the message is read once more: 40 µs for a push of 27,600 keys.
"""

import hashlib
import hmac
import re
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from pserver.errors import ConfigError, ForbiddenError, UnauthenticatedError, nearest
from pserver.server.methods import METHODS, Role
from pserver.server.named import tables_of

log = structlog.get_logger(__name__)

HEADER: Final = "authorization"
"""Metadata in which a token comes, after ``Bearer``."""

_SCHEME: Final = "Bearer "
_LOOK_S = 1.0  # between two looks at whether the file changed
_REMEMBERED_MAX = 1024
_KEYS = ("token", "token_sha256", "role", "tables")
_TOKEN = re.compile(r"[!-~]{16,512}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")

Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Grant:
    """What one token may do.

    Attributes:
        name: of the token.
        role: on all tables that ``tables`` does not name; None: nothing there.
        tables: by name of the table.
    """

    name: str
    role: Role | None
    tables: Mapping[str, Role]

    @property
    def highest(self) -> int:
        """Return the highest role that it has anywhere, 0 for none."""
        return max([self.role or 0, *self.tables.values()])

    def on(self, table: str) -> int:
        """Return the role on a table, 0 for none."""
        return self.tables.get(table, self.role or 0)


EVERYTHING: Final = Grant("", Role.ADMIN, {})
"""What everybody may do where there are no tokens."""


def read_tokens(path: Path) -> dict[bytes, Grant]:
    """Return what each token may do, by its digest.

    Raises:
        ConfigError: the file cannot be read, is no such TOML, or is readable for all users of the machine;
            names and keys are said, tokens never.
    """
    where = f"--token-file {path}"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError:
        # Its message may quote the line, and so a token.
        raise ConfigError(
            f"{where}: must be TOML, a table a token: [name] with token and role"
        ) from None
    if path.stat().st_mode & 0o004:
        raise ConfigError(f"{where}: every user of this machine can read it; chmod o-r {path}")
    found: dict[bytes, Grant] = {}
    for name, values in content.items():
        digest, grant = _entry(f"{where}: [{name}]", name, values)
        if found.setdefault(digest, grant).name != name:
            raise ConfigError(f"{where}: [{name}] has the token of another one; draw a new one")
    if not found:
        raise ConfigError(f"{where}: has no tokens, so nobody could call this server")
    return found


def _entry(where: str, name: str, values: object) -> tuple[bytes, Grant]:
    """Return the digest of a token of the file, and what the token may do.

    Raises:
        ConfigError: an entry is none; what stands for the token is not said.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where} must be a table with token and role")
    for key in values:
        if key not in _KEYS:
            raise ConfigError(f"{where} has no key {key!r}; {nearest(key, _KEYS)}")
    given, tables = values.get("role"), values.get("tables", {})
    if not isinstance(tables, dict) or (given is None and not tables):
        raise ConfigError(f'{where}: needs role or tables, such as {{ ads = "read" }}')
    role = None if given is None else _role(f"{where}: role", given)
    by_table = {table: _role(f"{where}: tables.{table}", word) for table, word in tables.items()}
    return _digest(where, values), Grant(name, role, by_table)


def _digest(where: str, values: Mapping[str, object]) -> bytes:
    """Return the SHA-256 of an entry's token."""
    token, digest = (str(values.get(key, "")) for key in ("token", "token_sha256"))
    if bool(token) == bool(digest):
        raise ConfigError(f"{where}: needs token or token_sha256, one of them")
    if token and not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where}: token must be 16 to 512 visible characters without spaces")
    if digest and not _SHA256.fullmatch(digest):
        raise ConfigError(f"{where}: token_sha256 must be 64 hexadecimal digits")
    return bytes.fromhex(digest) if digest else hashlib.sha256(token.encode()).digest()


def _role(where: str, word: object) -> Role:
    """Return the role of that name."""
    words = {role.name.lower(): role for role in Role}
    role = words.get(str(word))
    if role is None:
        raise ConfigError(f"{where}: unknown role {word!r}; {nearest(str(word), words)}")
    return role


class Access:
    """The tokens in force. Owner: the event loop."""

    def __init__(self, path: str | None, *, now: Callable[[], float] = time.monotonic) -> None:
        """Read the file.

        Args:
            path: of the file; None: everybody may do everything.
            now: seconds, for when to look at the file again.

        Raises:
            ConfigError: as ``read_tokens``.
        """
        self._path = None if path is None else Path(path)
        self._now = now
        self._known: dict[str, Grant] = {}  # by what came in the header
        self._grants = {} if self._path is None else read_tokens(self._path)
        self._stamp = self._stamp_now()
        self._looked_s = now()

    @property
    def is_open(self) -> bool:
        """Return whether no token is asked for."""
        return self._path is None

    def grant_of(self, metadata: Metadata) -> Grant:
        """Return what the token of a call may do: everything, where none is asked for.

        Raises:
            UnauthenticatedError: no token, or none of ours.
        """
        if self._path is None:
            return EVERYTHING
        if self._now() - self._looked_s >= _LOOK_S:
            self._look()
        came = ""
        for key, value in metadata:
            if key == HEADER and isinstance(value, str):
                came = value
        grant = self._known.get(came)
        if grant is None:
            grant = self._find(came)
            if len(self._known) < _REMEMBERED_MAX:
                self._known[came] = grant
        return grant

    @staticmethod
    def check(grant: Grant, method: str, message: bytes) -> None:
        """Let a call pass.

        Args:
            grant: of its token.
            method: of the service.
            message: of the call; looked at only where a token's role differs between tables, or is read.

        Raises:
            ForbiddenError: the role is too low for the method, or for a table that is named.
            ShapeError: tables had to be looked for, and the bytes are no message of the method.
        """
        needed = METHODS[method].role
        if grant.role is not None and not grant.tables and grant.role >= max(needed, Role.TRAIN):
            return
        if grant.highest < needed:
            raise ForbiddenError(
                f"token {grant.name!r} may not call {method}: it takes the role "
                f"{needed.name.lower()}"
            )
        named = tables_of(method, message)
        if not named and needed is Role.ADMIN and (grant.role or 0) < needed:
            raise ForbiddenError(
                f"token {grant.name!r} may not call {method}: it takes the role admin on all tables"
            )
        for table, does_more in named:
            wanted = max(needed, does_more)
            if grant.on(table) < wanted:
                raise ForbiddenError(
                    f"token {grant.name!r} may not call {method} on table {table!r}: it takes the "
                    f"role {wanted.name.lower()} there"
                    + ("; ask without making rows (peek)" if method == "Pull" else "")
                )

    def _find(self, came: str) -> Grant:
        """Compare with every token, whichever it is."""
        if not came.startswith(_SCHEME):
            raise UnauthenticatedError(
                "this server takes calls with a token only, and none came; give --token-file"
            )
        digest = hashlib.sha256(came.removeprefix(_SCHEME).encode()).digest()
        found = [g for d, g in self._grants.items() if hmac.compare_digest(d, digest)]
        if not found:
            raise UnauthenticatedError("the token that came is none of this server's")
        return found[0]

    def _stamp_now(self) -> tuple[int, int, int]:
        try:
            found = None if self._path is None else self._path.stat()
        except OSError:
            found = None
        return (0, 0, 0) if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)

    def _look(self) -> None:
        """Read the file again if it changed."""
        self._looked_s = self._now()
        stamp = self._stamp_now()
        if stamp == self._stamp or self._path is None:
            return
        self._stamp = stamp
        try:
            self._grants = read_tokens(self._path)
        except ConfigError as error:
            log.warning("a changed token file is not used", reason=str(error))
            return
        self._known.clear()
        log.info("took new tokens", names=sorted(grant.name for grant in self._grants.values()))
