"""How the ranks of a run find each other.

Rooms before and after: a launcher gives each process its rank, how many there are, and an address to
meet at; ``connect`` returns the ``Group`` of them all.

Rank 0 opens a store there (or the launcher did), every rank writes that it is here, and goes on when
all are. The address by which a rank is reached is the one by which it reaches the meeting place, not
what its host's name resolves to: on many hosts that is loopback.

What always holds: who does not find the others within ``connect_s`` gets an error that names the
missing and the addresses that were tried.
"""

import datetime
import socket
import time

from torch._C._distributed_c10d import Store, TCPStore

from collective.errors import GroupError, MissingRanksError
from collective.group import TIMEOUT_S, Group, alone

CONNECT_S = 30.0
"""How long ranks wait for each other at the start when nothing is said."""

_POLL_S = 0.05


def connect(
    *,
    rank: int,
    world_size: int,
    master: str,
    opens_store: bool | None = None,
    timeout_s: float = TIMEOUT_S,
    connect_s: float = CONNECT_S,
) -> Group:
    """Return the group of all ranks, once they are there.

    Args:
        rank: of this process, from 0.
        world_size: how many there are.
        master: HOST:PORT to meet at.
        opens_store: whether this process opens the store there; None: rank 0 does. A launcher such
            as torchrun opens it itself.
        timeout_s: limit of one operation of the group.
        connect_s: limit of this call.

    Raises:
        GroupError: the numbers are no group's, or the address is no HOST:PORT.
        MissingRanksError: nobody opened the store, or some ranks did not come in time.
    """
    if not 0 <= rank < world_size:
        raise GroupError(f"rank must be in [0, {world_size - 1}], got {rank}")
    host, _, port = master.rpartition(":")
    if not host or not port.isdecimal():
        raise GroupError(f"master must be HOST:PORT, got {master!r}")
    if world_size == 1:
        return alone()
    end_s = time.monotonic() + connect_s
    opens = rank == 0 if opens_store is None else opens_store
    store = _open(host, int(port), opens=opens, connect_s=connect_s)
    address = _address_towards(host, int(port))
    store.set(f"here/{rank}", f"{socket.gethostname()} ({address})")
    _wait_for_all(store, rank=rank, world_size=world_size, master=master, end_s=end_s)
    return Group(store, rank=rank, ranks=range(world_size), address=address, timeout_s=timeout_s)


def _open(host: str, port: int, *, opens: bool, connect_s: float) -> Store:
    """Open the store, or reach the one that another process opens."""
    try:
        return TCPStore(
            host.strip("[]"),
            port,
            is_master=opens,
            timeout=datetime.timedelta(seconds=connect_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if opens:
            text = f"cannot open the store at {host}:{port}: the port is taken or not allowed"
            raise GroupError(f"{text}; torch says: {reason}") from error
        text = f"nobody opened the store at {host}:{port} within {connect_s:g} s; is rank 0 running"
        raise MissingRanksError(
            f"{text}, and is this its address? torch says: {reason}", [0]
        ) from error


def _address_towards(host: str, port: int) -> str:
    """Return this host's IP address on the way to another."""
    family, kind, protocol, _, target = socket.getaddrinfo(
        host.strip("[]"), port, type=socket.SOCK_DGRAM
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # of a datagram socket: chooses a route, sends nothing
        return str(probe.getsockname()[0])


def _wait_for_all(store: Store, *, rank: int, world_size: int, master: str, end_s: float) -> None:
    """Wait until every rank has said that it is here."""
    left = set(range(world_size))
    while left := {other for other in left if not store.check([f"here/{other}"])}:
        if time.monotonic() > end_s:
            names = ", ".join(map(str, sorted(left)))
            here = "; ".join(
                f"rank {other} on {store.get(f'here/{other}').decode()}"
                for other in sorted(set(range(world_size)) - left)
            )
            raise MissingRanksError(
                f"rank {names} of {world_size} did not come to {master} in time; here are {here}",
                sorted(left),
            )
        time.sleep(_POLL_S)
