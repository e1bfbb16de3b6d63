"""The embedding side of a heterogeneous run: sends micro-batches to whichever dense trainer is free.

Rooms before and after: an embedding trainer pulls and pools rows and hands them over; ``hetero`` says how both
sides go together, ``hetero_wire`` what travels.

What always holds: every wait has a limit, and its error names the dense trainer that went away or did not
answer. Owner: the training thread; a thread for each connection, one lock for what they learn.
"""

import contextlib
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from torch import Tensor

from collective.errors import GroupError, PeerLostError, TensorError
from collective.hetero import LAST_WORDS_S, Fact
from collective.hetero_wire import (
    Kind,
    Message,
    check_tensors,
    parse_address,
    receive,
    send,
    tune,
)
from collective.tls import TlsConnection, TlsFiles

WINDOW = 2
"""One micro-batch is computed while the next travels."""

CONNECT_S = 30.0

TIMEOUT_S = 1800.0
"""How long an answer may take when nothing is said."""

_RETRY_S = 0.1

Answer = Future[tuple[Tensor, ...]]

_Link = socket.socket | TlsConnection


@dataclass(frozen=True, slots=True)
class Place:
    """Which embedding trainer this is.

    Attributes:
        trainer: its number, from 0.
        trainers: how many there are.
        facts: that all trainers of the run must agree on, such as the model.
    """

    trainer: int = 0
    trainers: int = 1
    facts: Mapping[str, Fact] | None = None


class Sender:
    """An embedding trainer's end. Close it at the end, or tell the dense trainers why it ends."""

    def __init__(
        self,
        addresses: list[str],
        place: Place,
        *,
        window: int = WINDOW,
        connect_s: float = CONNECT_S,
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
    ) -> None:
        """Connect to every dense trainer.

        Args:
            addresses: HOST:PORT of each.
            place: which embedding trainer this is.
            window: micro-batches on their way to each at once.
            connect_s: how long to try; dense trainers may start later.
            timeout_s: how long an answer may take.
            tls: of this end; dense trainers then need TLS too, with certificates for the hosts in
                ``addresses`` that its authorities vouch for.

        Raises:
            GroupError: no address, one that is no HOST:PORT, a dense trainer that refused this one, or a
                certificate that one of both found bad; the message says why.
            PeerLostError: a dense trainer could not be reached; the message names it.
        """
        if not addresses:
            raise GroupError("a sender needs the address of at least one dense trainer")
        if len(set(addresses)) < len(addresses):
            raise GroupError(f"each dense trainer is named once, got {', '.join(addresses)}")
        self._timeout_s = timeout_s
        self._todo: queue.SimpleQueue[_Order | None] = queue.SimpleQueue()
        self._lock = threading.Condition()
        self._lost: PeerLostError | None = None
        self._steps = 0
        self._stepped = dict.fromkeys(addresses, 0)
        self._is_closing = False
        end_s = time.monotonic() + connect_s
        works: list[tuple[_Link, str]] = []
        self._controls: dict[str, _Link] = {}
        way = _Way(place, None if tls is None else tls.connecting(), end_s)
        with contextlib.ExitStack() as stack:  # closes what is open if one cannot be reached
            for address in addresses:
                control = self._controls[address] = _connect(address, "control", way)
                stack.callback(control.close)
            for address in addresses * window:
                works.append((_connect(address, "work", way), address))
                stack.callback(works[-1][0].close)
            stack.pop_all()
        self._num_works = len(works)
        self._threads = self._start(works)

    def _start(self, works: Sequence[tuple[_Link, str]]) -> list[threading.Thread]:
        """Start a thread for each connection."""
        listening = [
            threading.Thread(target=self._listen, args=pair, name="hetero-listen", daemon=True)
            for pair in self._controls.items()
        ]
        carrying = [
            threading.Thread(target=self._carry, args=pair, name="hetero-send", daemon=True)
            for pair in works
        ]
        for thread in (*listening, *carrying):
            thread.start()
        return [*listening, *carrying]

    def send(self, tensors: Sequence[Tensor], *, weight: float) -> Answer:
        """Send a micro-batch to the next dense trainer that is free.

        Args:
            tensors: in host memory; they must not change until the answer is there.
            weight: travels with it.

        Returns:
            The gradients that come back; or it raises ``PeerLostError``.

        Raises:
            TensorError: a tensor that cannot travel.
        """
        return self._order(Kind.TRAIN, tensors, weight)

    def score(self, tensors: Sequence[Tensor]) -> Answer:
        """Send a micro-batch for the model's output; it is computed when nobody trains any more."""
        return self._order(Kind.SCORE, tensors, float(len(tensors[0])))

    def ask_state(self) -> Answer:
        """Ask whichever dense trainer is free for what it has, to be saved: one tensor of bytes."""
        return self._order(Kind.STATE, (), 0.0)

    def give_state(self, data: Tensor) -> None:
        """Give all dense trainers what was saved; before the first micro-batch.

        Args:
            data: (n,) uint8, as ``ask_state`` brought it.
        """
        self._tell_all(Message(Kind.STATE, (data,)))

    def end_step(self) -> None:
        """Tell all dense trainers that every answer of this step is here."""
        self._steps += 1
        self._tell_all(Message(Kind.STEP))

    def wait_step(self) -> None:
        """Wait until all dense trainers have stepped as often as this trainer ended a step.

        Raises:
            PeerLostError: one did not within the limit, or went away.
        """
        with self._lock:
            self._lock.wait_for(
                lambda: self._lost or min(self._stepped.values()) >= self._steps, self._timeout_s
            )
            if self._lost is not None:
                raise self._lost
            late = [a for a, stepped in self._stepped.items() if stepped < self._steps]
            if late:
                raise PeerLostError(
                    f"dense trainer {', '.join(late)}: step {self._steps} did not end within "
                    f"{self._timeout_s:g} s; an embedding trainer may be missing there"
                )

    def done(self) -> None:
        """Tell all dense trainers that this trainer trains no more."""
        self._tell_all(Message(Kind.DONE))

    def close(self) -> None:
        """Say goodbye, when all answers are there."""
        with self._lock:
            self._is_closing = True
        self._tell_all(Message(Kind.BYE))
        self._end()

    def fail(self, reason: str) -> None:
        """Tell all dense trainers why this one ends, and end."""
        with self._lock:
            self._lost = self._lost or PeerLostError(reason)
        self._tell_all(Message(Kind.FAIL, text=reason))
        self._end()

    def _end(self) -> None:
        for _ in range(self._num_works):
            self._todo.put(None)
        if self._lost is not None:  # answers that will not come
            for control in self._controls.values():
                with contextlib.suppress(OSError):
                    control.shutdown(socket.SHUT_RDWR)
            return
        for thread in self._threads:
            thread.join(self._timeout_s)

    def _order(self, kind: Kind, tensors: Sequence[Tensor], weight: float) -> Answer:
        check_tensors(tensors)
        message = Message(kind, tuple(tensor.detach() for tensor in tensors), weight)
        order = _Order(message, Future())
        self._todo.put(order)
        return order.answer

    def _tell_all(self, message: Message) -> None:
        for address, control in self._controls.items():
            try:
                send(control, message)
            except OSError as error:
                self._lose(address, error)

    def _listen(self, address: str, control: _Link) -> None:
        """Hear what a dense trainer says about steps and its end."""
        with control:
            while True:
                try:
                    message = receive(control)
                except (OSError, TensorError) as error:
                    if not self._is_closing:
                        self._lose(address, error)
                    return
                with self._lock:
                    if message.kind == Kind.FAIL:
                        text = f"dense trainer {address} failed: {message.text}"
                        self._lost = self._lost or PeerLostError(text)
                    self._stepped[address] += message.kind == Kind.STEP
                    self._lock.notify_all()

    def _carry(self, connection: _Link, address: str) -> None:
        """Carry micro-batches over one connection, one at a time."""
        connection.settimeout(self._timeout_s)
        with connection:
            while (order := self._todo.get()) is not None:
                if self._lost is None:
                    try:
                        send(connection, order.message)
                        order.answer.set_result(receive(connection).tensors)
                        continue
                    except TimeoutError:
                        self._lose(address, TimeoutError(f"no answer in {self._timeout_s:g} s"))
                    except (OSError, TensorError) as error:
                        with self._lock:
                            self._lock.wait_for(lambda: self._lost, LAST_WORDS_S)
                        self._lose(address, error)
                order.answer.set_exception(self._lost)
            if self._lost is None:
                with contextlib.suppress(OSError):  # it may have seen the goodbye of the control
                    send(connection, Message(Kind.BYE))

    def _lose(self, address: str, error: Exception) -> None:
        with self._lock:
            text = f"dense trainer {address} went away ({error})"
            self._lost = self._lost or PeerLostError(text)
            self._lock.notify_all()


@dataclass(frozen=True, slots=True)
class _Order:
    """A micro-batch that waits for a connection."""

    message: Message
    answer: Answer


@dataclass(frozen=True, slots=True)
class _Way:
    """How all connections are made: who this is, with which certificate, and until when it is tried."""

    place: Place
    tls: ssl.SSLContext | None
    end_s: float


def _connect(address: str, carries: str, way: _Way) -> _Link:
    """Connect to a dense trainer, which may not listen yet, and say who this is."""
    host, port = parse_address(address)
    while True:
        left_s = way.end_s - time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=max(left_s, _RETRY_S))
            with contextlib.ExitStack() as stack:
                stack.enter_context(connection)
                tune(connection)
                tls = way.tls
                link = connection if tls is None else TlsConnection(connection, tls, to_host=host)
                _greet(link, address, way.place, carries)
                link.settimeout(None)
                stack.pop_all()
            return link
        except ssl.SSLError as error:
            raise GroupError(f"dense trainer {address}: {_distrust(error)}") from error
        except OSError as error:
            if left_s <= 0:
                hint = "" if way.tls is None else "; with TLS here it must have TLS too"
                raise PeerLostError(f"no dense trainer at {address}: {error}{hint}") from error
            time.sleep(_RETRY_S)


def _distrust(error: ssl.SSLError) -> str:
    """Return who of both refused the other."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good here: {error.verify_message}"
    return f"it refused this trainer's certificate, or speaks no TLS: {error.reason or error}"


def _greet(connection: _Link, address: str, place: Place, carries: str) -> None:
    """Say who this is, and hear whether it is welcome."""
    hello = {
        "trainer": place.trainer,
        "trainers": place.trainers,
        "facts": dict(place.facts or {}),
        "carries": carries,
    }
    send(connection, Message(Kind.HELLO, text=json.dumps(hello)))
    if carries == "control":
        answer = receive(connection)
        if answer.kind != Kind.HELLO:
            raise GroupError(f"dense trainer {address} refused this trainer: {answer.text}")
