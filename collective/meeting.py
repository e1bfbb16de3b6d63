"""How the ranks of a run find each other.

Rooms before and after: a launcher gives each process its rank, how many there are, and an address to
meet at; ``connect`` returns the ``Group`` of them all.

Rank 0 opens a store there (or the launcher did). Every rank writes a word of its own there; rank 0 collects the
words, says whose it has, and once all have acknowledged that, they go on. A launcher's store may outlive ranks that
it starts again, with what they wrote; nobody acknowledges for a rank that is gone, so that is not taken for a
rank that is here, and each meeting has keys of its own afterwards. The address by which a rank is reached is the one by which it reaches the meeting place, not
what its host's name resolves to: on many hosts that is loopback.

What always holds: who does not find the others within ``connect_s`` gets an error that names the
missing and the addresses that were tried.
"""

import datetime
import json
import secrets
import socket
import time
from collections.abc import Sequence

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from collective.errors import GroupError, MissingRanksError
from collective.group import TIMEOUT_S, Group, alone
from collective.roll import GRACE_S, Roll

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
    meeting = _Meeting(store, rank=rank, world_size=world_size, master=master)
    try:
        token = meeting.hold(f"{socket.gethostname()} ({address})", end_s=end_s)
    except RuntimeError as error:  # the store went away with its process
        raise MissingRanksError(
            f"the store at {master} is gone with its process, rank 0 or the launcher, before all of the "
            f"{world_size} ranks were there; torch says: {str(error).splitlines()[0]}",
            [0],
        ) from error
    roll = Roll(PrefixStore(f"run/{token}", store), rank=rank)
    return Group(roll, rank=rank, ranks=range(world_size), address=address, timeout_s=timeout_s)


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


class _Meeting:
    """One rank's part in finding the others. Owner: the thread that connects."""

    def __init__(self, store: Store, *, rank: int, world_size: int, master: str) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._master = master
        self._word = secrets.token_hex(8)
        self._words: dict[str, str] = {}  # by rank, of those that rank 0 has seen
        self._token = ""  # of the words that this rank acknowledged last

    def hold(self, where: str, *, end_s: float) -> str:
        """Return a token that is the same on all ranks, and of this meeting only, once all are here.

        Args:
            where: this rank is, for the errors of others.
            end_s: when to give up.

        Raises:
            MissingRanksError: some ranks did not come in time.
            RuntimeError: the store is gone.
        """
        self._store.set(f"hello/{self._rank}", json.dumps([self._word, where]))
        while True:
            if self._rank == 0:
                self._collect()
            self._acknowledge()
            left = self._without("ack", range(self._world_size))
            if self._rank == 0 and not left:
                self._store.set(f"all/{self._token}", "1")
            if self._token and self._store.check([f"all/{self._token}"]):
                return self._token
            told = self._told()
            if told is not None or time.monotonic() > end_s:
                raise self._missing(left if told is None else told)
            time.sleep(_POLL_S)

    def _collect(self) -> None:
        """Say whose words are here, if that has changed. Of rank 0."""
        words = {str(rank): self._hello(rank)[0] for rank in self._came()}
        if words != self._words:
            self._words = words
            self._store.set("words", json.dumps([secrets.token_hex(8), words]))

    def _acknowledge(self) -> None:
        """Say that this rank's own word is among those that rank 0 has."""
        if not self._store.check(["words"]):
            return
        token, words = json.loads(self._store.get("words"))
        if words.get(str(self._rank)) == self._word and token != self._token:
            self._token = token
            self._store.set(f"ack/{token}/{self._rank}", "1")

    def _came(self) -> list[int]:
        """Return the ranks that wrote a word, be it in a run before this one."""
        return [r for r in range(self._world_size) if self._store.check([f"hello/{r}"])]

    def _hello(self, rank: int) -> tuple[str, str]:
        word, where = json.loads(self._store.get(f"hello/{rank}"))
        return word, where

    def _without(self, said: str, ranks: Sequence[int]) -> list[int]:
        """Return the ranks that have not said something in this meeting; before it, all of them."""
        if not self._token:
            return list(ranks)
        return [r for r in ranks if not self._store.check([f"{said}/{self._token}/{r}"])]

    def _told(self) -> list[int] | None:
        """Return the ranks that did not come, if another rank has given up."""
        key = f"missing/{self._token}"
        if not (self._token and self._store.check([key])):
            return None
        missing: list[int] = json.loads(self._store.get(key))
        return missing

    def _missing(self, left: Sequence[int]) -> MissingRanksError:
        """Return the error that names ranks, once those that are here can have heard of it."""
        here = sorted(set(range(self._world_size)) - set(left))
        if not self._token:  # no word of rank 0, so nobody knows who is here
            left, here = [0], [self._rank]
        else:
            self._store.set(f"missing/{self._token}", json.dumps(list(left)))
            self._store.set(f"heard/{self._token}/{self._rank}", "1")
            end_s = time.monotonic() + GRACE_S
            while self._rank == 0 and self._without("heard", here) and time.monotonic() < end_s:
                time.sleep(_POLL_S)  # the store goes with this process
        names = ", ".join(map(str, left))
        places = "; ".join(f"rank {rank} on {self._hello(rank)[1]}" for rank in here)
        return MissingRanksError(
            f"rank {names} of {self._world_size} did not come to {self._master} in time; "
            f"here are {places}",
            left,
        )
