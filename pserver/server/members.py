"""The trainers of a group as one shard knows them: who they are, and who is still with them.

Rooms before and after: ``group`` brings commands (join, leave, expire, drop), in the owner thread;
``rounds`` asks whose parts a round waits for, ``pushes`` who it is that pushes.

What always holds:
    * What is here follows from the commands in their order: no clock is read. That a lease ran out
      is decided on the event loop and comes as a command.
    * An id has one process at a time. What an earlier one sends late is refused by name.
    * The first trainer to join says what the group agrees on; whoever says otherwise is refused. When
      nobody is with the group any more, it is over, and the next one may agree on something else.
Owner: the shard's owner thread.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pserver.config import GroupSettings
from pserver.errors import GroupError
from pserver.spread import Spread

State: TypeAlias = Literal["absent", "live", "expired", "left", "dropped"]
"""Absent: it has not come yet. Expired: not heard from for its lease, and may come back."""

REFUSED_MAX = 64
"""Refused pushes of a trainer that are remembered: more than a client's usual window has on the wire."""

GONE_MAX = 4096
"""Processes that are remembered as replaced or dropped, about 200 bytes each: four a trainer."""

_AGREED = ("mode", "trainers", "max_staleness", "staleness_lr")
_AGREED_IN_SYNC = (*_AGREED, "sync_divisor", "on_missing", "barrier_timeout")


class TakenError(Exception):
    """An id has a live process: to be asked again when its lease is over. Never leaves the server.

    Attributes:
        uuid: of that process.
    """

    def __init__(self, uuid: bytes, text: str) -> None:
        """Take who has the id, and what to say if it keeps it."""
        super().__init__(text)
        self.uuid = uuid


@dataclass(slots=True)
class Member:
    """One trainer.

    Attributes:
        trainer_id: from 0.
        uuid: of its process, as its pushes have it; empty while it is absent.
        host: where it runs, for people.
        incarnation: how many processes came under this id.
        state: whether it is with the group.
        first_round: the first round that waits for it.
        last_round: the last one that it sent its part of.
        steps: pushes that it finished, counted from the slowest when it joined.
        pushes: that this process of it finished here, those that were refused too.
        refused: counters of the last pushes that were refused, so that none is counted again when it is
            sent again.
        position: steps of its data that are in with them, as its last finished push told; 0: not told.
        is_amid: whether it began another one, and further messages of it are to come.
        staleness: of its pushes.
        lease_s: seconds that it may be unheard of.
    """

    trainer_id: int
    uuid: bytes = b""
    host: str = ""
    incarnation: int = 0
    state: State = "absent"
    first_round: int = 0
    last_round: int = 0
    steps: int = 0
    pushes: int = 0
    position: int = 0
    is_amid: bool = False
    refused: list[int] = field(default_factory=list)
    staleness: Spread = field(default_factory=Spread)
    lease_s: float = 0.0

    @property
    def is_expected(self) -> bool:
        """Return whether rounds wait for it: it is there, late, or has not come yet."""
        return self.state in ("absent", "live", "expired")

    @property
    def name(self) -> str:
        """Return what errors call it."""
        process = f" (process {self.incarnation} of that id, {self.host})" if self.uuid else ""
        return f"trainer {self.trainer_id}{process}"


class Members:
    """The group of one shard. Owner: the shard's owner thread."""

    def __init__(self) -> None:
        """Begin without a group."""
        self.spec: GroupSettings | None = None
        self.number = 0  # groups that there were, this one included
        self._members: dict[int, Member] = {}
        self._by_uuid: dict[bytes, Member] = {}
        self._gone: OrderedDict[bytes, str] = OrderedDict()

    def __iter__(self) -> Iterator[Member]:
        """Iterate in the order of ids, over those that have not come yet too."""
        return iter(self._members.values())

    @property
    def is_sync(self) -> bool:
        """Return whether there is a group that works in rounds."""
        return self.spec is not None and self.spec.mode == "sync"

    @property
    def num_live(self) -> int:
        """Return how many trainers are with the group now."""
        return sum(member.state == "live" for member in self)

    @property
    def num_here(self) -> int:
        """Return how many trainers are with the group now, or have not come yet."""
        return sum(member.state in ("live", "absent") for member in self)

    # --- commands -----------------------------------------------------------------------------

    def join(
        self, settings: GroupSettings, uuid: bytes, host: str, *, open_round: int, first_round: int
    ) -> Member:
        """Make a process the trainer of an id.

        Args:
            settings: what it wants of the group, and its id.
            uuid: of its pushes.
            host: for people.
            open_round: the round that is open here.
            first_round: the first that is to wait for it; 0 or less than ``open_round``: that one.
                Never one that has a whole part of an earlier process of the id: that part counts.

        Raises:
            TakenError: the id has another process, whose lease is not over.
            GroupError: the group agrees on something else; what differs is shown.
        """
        self._check_agreed(settings, host)
        if self.spec is None:
            self.spec = settings
            self.number += 1
            self._members = {number: Member(number) for number in range(settings.trainers)}
        member = self._members[settings.trainer_id]
        if member.uuid != uuid:
            if member.state == "live":
                raise TakenError(
                    member.uuid,
                    f"trainer {member.trainer_id} is running already: {member.name} is live, and "
                    f"{host} came under the same id; give each trainer its own --trainer-id",
                )
            if member.uuid:
                after = f"{member.name} was replaced by process {member.incarnation + 1} on {host}"
                self._forget(member, after)
            member.uuid, member.incarnation = uuid, member.incarnation + 1
            member.pushes, member.position, member.is_amid = 0, 0, False
            member.refused = []
        if member.state != "live":
            member.steps = self.slowest_step()
        member.host, member.state, member.lease_s = host, "live", settings.lease_s
        member.first_round = max(first_round, open_round, member.last_round + 1)
        self._by_uuid[uuid] = member
        self._gone.pop(uuid, None)
        return member

    def leave(self, uuid: bytes) -> None:
        """Let a trainer go; what it sent stays. Unknown and gone ones are no error."""
        member = self._by_uuid.get(uuid)
        if member is not None:
            member.state = "left"

    def expire(self, uuid: bytes) -> None:
        """Take a trainer for gone until it is heard from."""
        member = self._by_uuid.get(uuid)
        if member is not None and member.state == "live":
            member.state = "expired"

    def revive(self, uuid: bytes) -> None:
        """Take back a trainer that was heard from after its lease was over."""
        member = self._by_uuid.get(uuid)
        if member is not None and member.state == "expired":
            member.state = "live"

    def drop(self, trainer_id: int, why: str) -> None:
        """Go on without a trainer; what it sends from now on is refused."""
        member = self._members[trainer_id]
        member.state = "dropped"
        if member.uuid:
            self._forget(member, f"{member.name} was dropped: {why}")
            member.uuid = b""

    def end_if_empty(self) -> None:
        """End the group if nobody is with it or still to come; its processes may join the next."""
        if self.spec is not None and not any(member.is_expected for member in self):
            for member in self:
                self._by_uuid.pop(member.uuid, None)
            self.spec = None
            self._members = {}

    def end(self, why: str) -> None:
        """End the group: whoever was in it is refused from now on."""
        for member in self:
            if member.uuid:
                self._forget(member, f"{member.name} is no longer in a group: {why}")
        self.spec = None
        self._members = {}

    # --- questions ----------------------------------------------------------------------------

    def of(self, uuid: bytes) -> Member | None:
        """Return the trainer that a process is; None if it never joined.

        Raises:
            GroupError: it was replaced or dropped.
        """
        member = self._by_uuid.get(uuid)
        if member is None and uuid in self._gone:
            raise GroupError(f"{self._gone[uuid]}; what it sends is not applied")
        return member

    def is_live(self, uuid: bytes) -> bool:
        """Return whether a process is with the group and its lease is not over."""
        member = self._by_uuid.get(uuid)
        return member is not None and member.state == "live"

    def expected(self, round_number: int) -> list[Member]:
        """Return whose parts a round waits for, in the order of ids."""
        return [m for m in self if m.is_expected and m.first_round <= round_number]

    def slowest_step(self) -> int:
        """Return the steps of the slowest live trainer; 0 if there is none."""
        return min((member.steps for member in self if member.state == "live"), default=0)

    # --- as plain data ------------------------------------------------------------------------

    def export(self) -> dict[str, Any]:
        """Return all of it as numbers, text, bytes, lists and dicts; ``load`` takes it back."""
        members = []
        for member in self:
            plain = {f.name: getattr(member, f.name) for f in dataclasses.fields(Member)}
            plain["staleness"] = [member.staleness.counts, member.staleness.max]
            members.append(plain)
        spec = None if self.spec is None else self.spec.model_dump()
        gone = list(map(list, self._gone.items()))
        return {"number": self.number, "spec": spec, "members": members, "gone": gone}

    def load(self, state: dict[str, Any]) -> None:
        """Become what ``export`` returned elsewhere. Whoever was live has to be heard from again."""
        self.number = state["number"]
        self.spec = None if state["spec"] is None else GroupSettings(**state["spec"])
        self._members, self._by_uuid = {}, {}
        for plain in state["members"]:
            member = Member(**{**plain, "staleness": Spread(*plain["staleness"])})
            self._members[member.trainer_id] = member
            if member.uuid:
                self._by_uuid[member.uuid] = member
        self._gone = OrderedDict((uuid, why) for uuid, why in state["gone"])

    # --- inside -------------------------------------------------------------------------------

    def _check_agreed(self, settings: GroupSettings, host: str) -> None:
        """Refuse a trainer that wants another group than the one there is."""
        agreed = self.spec
        if agreed is None:
            return
        read = _AGREED_IN_SYNC if agreed.mode == settings.mode == "sync" else _AGREED
        names = [name for name in read if getattr(agreed, name) != getattr(settings, name)]
        if not names:
            return
        if not any(member.state == "live" for member in self):
            self.end("another group began, with other settings")
            return
        there = next(member for member in self if member.state == "live")
        theirs = ", ".join(f"{name} {getattr(agreed, name)}" for name in names)
        wanted = ", ".join(f"{name} {getattr(settings, name)}" for name in names)
        raise GroupError(
            f"the trainers of a group must agree: {there.name} runs with {theirs}, and trainer "
            f"{settings.trainer_id} ({host}) came with {wanted}"
        )

    def _forget(self, member: Member, why: str) -> None:
        """Refuse a process from now on."""
        self._by_uuid.pop(member.uuid, None)
        self._gone[member.uuid] = why
        if len(self._gone) > GONE_MAX:
            self._gone.popitem(last=False)
