"""The launch environment of PaddlePaddle: what its launchers tell a server or a trainer.

Rooms before and after: the command line of ``pserver`` takes a shard's place from it
(``ServeAliases``), that of ``trainer`` its servers and its number (``read_paddle``).

===============================  ============================================================
``TRAINING_ROLE``                ``PSERVER`` or ``TRAINER``: which command this environment is for
``PADDLE_PSERVER_ENDPOINTS``     HOST:PORT,... of the servers, shard 0 first
``PADDLE_PSERVERS_IP_PORT_LIST``  the same, by its later name
``POD_IP``, ``PADDLE_PORT``      the address of this process; a trainer listens nowhere
``PADDLE_TRAINERS_NUM``          how many trainers there are
``PADDLE_TRAINER_ID``            which one this is, from 0
===============================  ============================================================

What always holds: a process takes its role from the command, and refuses the environment of the
other one; a misspelt name is an error; names that mean nothing here are let pass.
"""

from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import override

from pserver.errors import ConfigError, nearest
from pserver.options import Aliases, Given, refuse_misspelt

ENDPOINTS: Final = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")
ROLE: Final = "TRAINING_ROLE"
_ROLES: Final = {"PSERVER": "pserver serve", "TRAINER": "trainer run"}
_PREFIX: Final = "PADDLE_"
_NAMES: Final = (
    *ENDPOINTS,
    ROLE,
    "POD_IP",
    "PADDLE_PORT",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINER_ID",
)
_NOT_NEEDED: Final = ("PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT", "PADDLE_PSERVER_ID")
"""Names that a launcher sets too and that are close to those above."""


def read_paddle(environ: Mapping[str, str], *, role: str) -> dict[str, str]:
    """Return the variables above that are set and not empty.

    Args:
        environ: the environment.
        role: ``PSERVER`` or ``TRAINER``, what the command is.

    Raises:
        ConfigError: the environment is for the other role, its role is unknown, a name is
            misspelt, or the two lists of servers differ.
    """
    known = {name.removeprefix(_PREFIX) for name in (*_NAMES, *_NOT_NEEDED)}
    refuse_misspelt(known, environ, prefix=_PREFIX)
    found = {name: environ[name] for name in _NAMES if environ.get(name)}
    said = found.get(ROLE, role)
    if said not in _ROLES:
        raise ConfigError(f"environment {ROLE}: unknown role {said!r}; {nearest(said, _ROLES)}")
    if said != role:
        raise ConfigError(
            f"environment {ROLE}={said} is for `{_ROLES[said]}`, and this is `{_ROLES[role]}`"
        )
    lists = [name for name in ENDPOINTS if name in found]
    if len({found[name] for name in lists}) > 1:
        texts = " and ".join(f"{name}={found[name]}" for name in lists)
        raise ConfigError(f"environment {texts}: must be the same list; give one of them")
    return found


class ServeAliases(Aliases):
    """A shard's place, from the address of this process in the list of servers."""

    @override
    def from_environment(self, environ: Mapping[str, str]) -> Given:
        """Return shard, shards and bind, if the environment says that this is a server.

        Raises:
            ConfigError: a variable is missing, or this process is not in the list.
        """
        found = read_paddle(environ, role="PSERVER")
        if ROLE not in found:
            return {}
        source = next((name for name in ENDPOINTS if name in found), ENDPOINTS[0])
        for name in (source, "POD_IP", "PADDLE_PORT"):
            if name not in found:
                raise ConfigError(f"environment {ROLE}=PSERVER needs {name}, which is not set")
        servers = [server.strip() for server in found[source].split(",") if server.strip()]
        here = f"{found['POD_IP']}:{found['PADDLE_PORT']}"
        if servers.count(here) != 1:
            raise ConfigError(
                f"environment POD_IP:PADDLE_PORT {here} must stand once in {source}, which is "
                f"{found[source]}"
            )
        return {
            "shard": (str(servers.index(here)), f"environment {source}"),
            "shards": (str(len(servers)), f"environment {source}"),
            "bind": (here, "environment POD_IP:PADDLE_PORT"),
        }

    @override
    def from_file(self, values: dict[str, Any], *, where: str) -> tuple[dict[str, Any], Given]:
        """Return the section as it is: files have our names only."""
        return values, {}
