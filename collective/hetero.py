"""The dense side of a heterogeneous run: takes micro-batches of embedding trainers, answers with gradients.

Rooms before and after: ``hetero_sender`` is the other side: an embedding trainer pulls and pools rows and sends
them; here a dense trainer computes, and answers with the rows' gradients, which go back into pooling's backward.
Any number on each side. All travels through host memory (``hetero_wire``), so unlike devices meet.

An embedding trainer opens a control connection to each dense trainer, and some for micro-batches, each of
which carries one at a time: so micro-batches go to whoever is free, and one waits there while another is computed.
Training goes in steps: when an embedding trainer has all answers of its batch it says so to all dense trainers; when
all embedding trainers that still train have, ``take`` gives a ``StepEnd``, and its answer lets them go on.

What always holds:
    * Micro-batches that wait to be taken have at most ``bytes_max`` bytes, or are one; who sends more waits.
    * Every dense trainer sees the same steps end in the same order: as many as the longest share of an
      embedding trainer has. What is scored is taken when nobody trains any more.
    * A trainer that goes without a goodbye ends the others: every wait then raises ``PeerLostError``, which
      names it, and says why if it could still tell.
Owner: the training thread; one lock guards what came.
"""

import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from collective.errors import GroupError, PeerLostError, TensorError
from collective.hetero_wire import Connection, Kind, Message, parse_address, receive, send, tune
from collective.tls import TlsConnection, TlsFiles

BYTES_MAX = 1 << 30
"""Bytes that wait on a dense trainer when nothing is said."""

LAST_WORDS_S = 2.0
"""How long to wait for the reason, when a connection for micro-batches breaks first."""

Fact = str | int
"""Something that all trainers of a run must agree on."""

_HELLO = {"trainer": int, "trainers": int, "facts": dict, "carries": str}


@dataclass(frozen=True, slots=True)
class Work:
    """A micro-batch on a dense trainer. Answer it, once.

    Attributes:
        tensors: such as pooled rows, dense values and labels; in host memory.
        weight: that its sender gave it, such as its samples.
        kind: TRAIN; SCORE: the model's output is asked for, and no gradients; STATE: all that this trainer has.
        peer: who sent it.
    """

    tensors: tuple[Tensor, ...]
    weight: float
    kind: Kind
    peer: str
    _answer: "Future[tuple[Tensor, ...]]" = field(repr=False)

    @property
    def is_score(self) -> bool:
        """Return whether it is taken when nobody trains any more."""
        return self.kind == Kind.SCORE

    @property
    def num_bytes(self) -> int:
        """Return the bytes of the tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def answer(self, tensors: Sequence[Tensor]) -> None:
        """Send gradients, or the output, back."""
        self._answer.set_result(tuple(tensors))


@dataclass(frozen=True, slots=True)
class StepEnd:
    """All micro-batches of a step are answered. Answer it once the weights are those of the next one."""

    _receiver: "Receiver" = field(repr=False)

    def answer(self) -> None:
        """Let the embedding trainers go on."""
        self._receiver.stepped()


@dataclass(slots=True)
class _Peer:
    """What is known of an embedding trainer."""

    name: str
    control: Connection
    sends: threading.Lock = field(default_factory=threading.Lock)
    ended: int = 0
    is_done: bool = False
    is_gone: bool = False


class Receiver:
    """A dense trainer's end. Close it at the end, with the reason if it failed.

    Attributes:
        address: HOST:PORT that it listens on.
        trainers: embedding trainers that the run has; 0 until one is here.
        peak_bytes: most bytes of micro-batches that ever waited.
    """

    def __init__(
        self,
        bind: str,
        *,
        bytes_max: int = BYTES_MAX,
        facts: Mapping[str, Fact] | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Listen.

        Args:
            bind: HOST:PORT; port 0 takes a free one.
            bytes_max: of micro-batches that wait.
            facts: that embedding trainers must agree with, where they state them; one that does not
                is refused.
            tls: of this end; embedding trainers then need TLS too, with a certificate that its
                authorities vouch for.

        Raises:
            GroupError: the address cannot be bound, or the files cannot be used.
        """
        self._tls = None if tls is None else tls.accepting()
        host, port = parse_address(bind)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise GroupError(f"cannot listen on {bind}: {error.strerror}") from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._socket.getsockname()[1]}"
        self.peak_bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.Condition()
        self._waiting: dict[bool, deque[Work]] = {False: deque(), True: deque()}  # by is_score
        self._waiting_bytes = 0
        self._stepped = 0
        self._facts = dict(facts or {})
        self.trainers = 0
        self._peers: dict[int, _Peer] = {}
        self._refused = ""
        self._state: tuple[Tensor, ...] = ()
        self._lost: str | None = None
        self._is_closed = False
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, name="hetero-accept", daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        """Return the bytes of micro-batches that wait to be taken."""
        return self._waiting_bytes

    def gather(self, timeout_s: float) -> dict[str, Fact]:
        """Wait until all embedding trainers are here, and return the facts that they agree on.

        Raises:
            PeerLostError: some did not come within the limit, or one went away.
        """
        with self._lock:
            is_there = self._lock.wait_for(
                lambda: self._lost or 0 < self.trainers == len(self._peers), timeout_s
            )
            self._raise_lost()
            if not is_there:
                missing = sorted(set(range(self.trainers)) - self._peers.keys())
                who = f"embedding trainer {', '.join(map(str, missing))}"
                text = f"{who} did not come" if missing else "no embedding trainer came"
                raise PeerLostError(f"{self.address}: {text} within {timeout_s:g} s{self._refused}")
            return dict(self._facts)

    def take_state(self, timeout_s: float) -> Tensor:
        """Wait for what was saved, which an embedding trainer gives before the first micro-batch.

        Returns:
            (n,) uint8, as this or another dense trainer answered a question for it.

        Raises:
            PeerLostError: an embedding trainer went away, or nothing came within the limit.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._lost or self._state, timeout_s)
            self._raise_lost()
            if len(self._state) != 1:
                raise PeerLostError(
                    f"{self.address}: nothing that was saved came within {timeout_s:g} s"
                )
            return self._state[0]

    def take(self, timeout_s: float) -> Work | StepEnd | None:
        """Return the next micro-batch or the end of a step; None when all senders are through.

        Raises:
            PeerLostError: a sender went without a goodbye, or nothing came within the limit.
        """
        found: list[Work | StepEnd | None] = []
        with self._lock:
            is_there = self._lock.wait_for(lambda: self._lost or self._find(found), timeout_s)
            self._raise_lost()
            if not is_there:
                raise PeerLostError(f"{self.address}: no micro-batch came within {timeout_s:g} s")
            (event,) = found
            if isinstance(event, Work):
                self._waiting[event.is_score].popleft()
                self._waiting_bytes -= event.num_bytes
                self._lock.notify_all()
            return event

    def stepped(self) -> None:
        """Tell the embedding trainers that the weights are those of the next step."""
        with self._lock:
            self._stepped += 1
            peers = [peer for peer in self._peers.values() if peer.ended >= self._stepped]
        for peer in peers:
            self._tell(peer, Message(Kind.STEP))

    def close(self, reason: str = "") -> None:
        """Listen no more, and break the connections that have not said goodbye, telling them why."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()
            peers = list(self._peers.values())
        if reason:
            for peer in peers:
                self._tell(peer, Message(Kind.FAIL, text=reason))
        for connection in (self._socket, *self._connections):  # a thread in accept holds it open
            with contextlib.suppress(OSError):  # it ended by itself
                connection.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    # --- with the lock held -------------------------------------------------------------------

    def _find(self, found: list[Work | StepEnd | None]) -> bool:
        """Put in what is to be done next, if there is something."""
        peers = self._peers.values()
        step = self._stepped + 1
        all_done = 0 < self.trainers == len(peers) and all(peer.is_done for peer in peers)
        if self._waiting[False]:
            found.append(self._waiting[False][0])
        elif any(p.ended >= step for p in peers) and self._is_over(step):
            found.append(StepEnd(self))
        elif self._waiting[True] and all_done:
            found.append(self._waiting[True][0])
        elif all_done and all(peer.is_gone for peer in peers):
            found.append(None)
        return bool(found)

    def _is_over(self, step: int) -> bool:
        """Return whether nobody will send a micro-batch of a step any more."""
        peers = self._peers.values()
        is_all = len(peers) == self.trainers
        return is_all and all(peer.ended >= step or peer.is_done for peer in peers)

    def _raise_lost(self) -> None:
        if self._lost:
            raise PeerLostError(self._lost)

    # --- threads of connections ---------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection, peer = self._socket.accept()
            except OSError:  # closed
                return
            tune(connection)
            self._connections.append(connection)
            name = f"{peer[0]}:{peer[1]}"
            threading.Thread(
                target=self._serve, args=(connection, name), name=f"hetero-{name}", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, address: str) -> None:
        """Listen to one connection until its end. Who greets with something else is sent away."""
        with connection:
            try:
                link = connection if self._tls is None else TlsConnection(connection, self._tls)
                hello = _greeting(receive(link))
            except (OSError, TensorError) as error:
                with self._lock:
                    self._refused = f"; refused: {address} ({error})"
                return
            name = f"embedding trainer {hello['trainer']} ({address})"
            try:
                if hello["carries"] == "control":
                    self._serve_control(link, name, hello)
                else:
                    self._serve_work(link, name)
            except (OSError, TensorError) as error:
                if hello["carries"] != "control":  # the other connection may bring the reason
                    with self._lock:
                        self._lock.wait_for(lambda: self._lost or self._is_closed, LAST_WORDS_S)
                self._lose(f"{name} went away ({error})")

    def _serve_control(self, connection: Connection, name: str, hello: dict[str, Any]) -> None:
        peer = _Peer(name, connection)
        refusal = self._admit(peer, hello)
        if refusal:
            self._tell(peer, Message(Kind.FAIL, text=refusal))
            return
        self._tell(peer, Message(Kind.HELLO))
        while not peer.is_gone:
            message = receive(connection)
            if message.kind == Kind.FAIL:
                self._lose(f"{name} failed: {message.text}")
                return
            with self._lock:
                peer.ended += message.kind == Kind.STEP
                peer.is_done |= message.kind in (Kind.DONE, Kind.BYE)
                peer.is_gone |= message.kind == Kind.BYE
                if message.kind == Kind.STATE:
                    self._state = message.tensors
                self._lock.notify_all()

    def _admit(self, peer: _Peer, hello: dict[str, Any]) -> str:
        """Take in an embedding trainer; return why not, if not."""
        number, trainers, stated = hello["trainer"], hello["trainers"], hello["facts"]
        with self._lock:
            expected = {**self._facts, "trainers": self.trainers or trainers}
            came = {**stated, "trainers": trainers}
            apart = [n for n in came if n in expected and expected[n] != came[n]]
            refusal = ""
            if apart:
                pairs = ", ".join(f"{n} {expected[n]!r} here and {came[n]!r} there" for n in apart)
                refusal = f"dense trainer {self.address} and {peer.name} must agree: {pairs}"
            elif number in self._peers:
                refusal = f"{peer.name}: {self._peers[number].name} is here already"
            elif not 0 <= number < trainers:
                refusal = f"{peer.name}: its number must be below {trainers}"
            if refusal:
                self._refused = f"; refused: {refusal}"
            else:
                self._facts.update(stated)
                self.trainers = trainers
                self._peers[number] = peer
            self._lock.notify_all()
        return refusal

    def _serve_work(self, connection: Connection, name: str) -> None:
        """Pass micro-batches on, and their answers back."""
        while (message := receive(connection)).kind != Kind.BYE:
            if message.kind not in (Kind.SCORE, Kind.STATE):
                _expect(message, Kind.TRAIN)
            answer: Future[tuple[Tensor, ...]] = Future()
            self._put(Work(message.tensors, message.weight, message.kind, name, answer))
            send(connection, Message(message.kind, answer.result()))

    def _put(self, work: Work) -> None:
        size = work.num_bytes
        with self._lock:
            self._lock.wait_for(
                lambda: not self._waiting_bytes or self._waiting_bytes + size <= self._bytes_max
            )
            self._waiting[work.is_score].append(work)
            self._waiting_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._waiting_bytes)
            self._lock.notify_all()

    def _tell(self, peer: _Peer, message: Message) -> None:
        """Say something to an embedding trainer; that it is gone is seen elsewhere."""
        with peer.sends, contextlib.suppress(OSError):
            send(peer.control, message)

    def _lose(self, text: str) -> None:
        with self._lock:
            if not self._is_closed:
                self._lost = self._lost or text
            self._lock.notify_all()


def _expect(message: Message, kind: Kind) -> Message:
    if message.kind != kind:
        raise TensorError(f"{message.kind.name} came where {kind.name} belongs")
    return message


def _greeting(message: Message) -> dict[str, Any]:
    """Return what a trainer says of itself, with the fields of ``_HELLO`` and their types."""
    text = _expect(message, Kind.HELLO).text
    try:
        hello = json.loads(text)
    except ValueError:
        hello = None
    if not isinstance(hello, dict) or any(type(hello.get(n)) is not t for n, t in _HELLO.items()):
        raise TensorError("what came is no greeting of a trainer")
    return hello
