"""Bytes from the left and to the right: in order, however many, and errors instead of endless waits."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from collective.neighbours import Listener, Neighbours


@contextlib.contextmanager
def a_pair() -> Iterator[tuple[Neighbours, Neighbours]]:
    """Have a ring of two: each is the other's left and right neighbour."""
    with Listener("127.0.0.1") as one, Listener("127.0.0.1") as two:
        found: list[Neighbours] = []
        meets = threading.Thread(target=lambda: found.append(one.meet(two.word, limit_s=30.0)))
        meets.start()
        second = two.meet(one.word, limit_s=30.0)
        meets.join()
    try:
        yield found[0], second
    finally:
        found[0].close()
        second.close()


def test_both_send_more_than_the_system_holds_and_nobody_stands_still():
    """Each puts 16 MiB before it reads; both get what the other put, in its order."""
    size = 16 << 20
    sent = [bytes(range(256)) * (size // 256), bytes(reversed(range(256))) * (size // 256)]
    came = [bytearray(size), bytearray(size)]

    def exchange(neighbours: Neighbours, number: int) -> None:
        half = size // 2
        for start in (0, half):
            neighbours.put(memoryview(sent[number])[start : start + half])
        for start in (0, half):
            neighbours.fill(memoryview(came[number])[start : start + half])
        neighbours.flush()

    with a_pair() as pair:
        other = threading.Thread(target=exchange, args=(pair[1], 1))
        other.start()
        exchange(pair[0], 0)
        other.join()

    assert came == [sent[1], sent[0]]


def test_who_does_not_know_the_token_is_sent_away():
    """A stranger that finds the port is not taken for the left neighbour, which comes after it."""
    with Listener("127.0.0.1") as one, Listener("127.0.0.1") as two:
        port = int.from_bytes(one.word[16:18], "little")
        with socket.create_connection(("127.0.0.1", port), 10.0) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n")
            found: list[Neighbours] = []
            meets = threading.Thread(target=lambda: found.append(one.meet(two.word, limit_s=30.0)))
            meets.start()
            second = two.meet(one.word, limit_s=30.0)
            meets.join()
            second.put(memoryview(b"ours"))
            second.flush()
            came = bytearray(4)
            found[0].fill(memoryview(came))

    assert came == b"ours"


def test_a_neighbour_that_closes_is_an_error():
    """Who waits for bytes of one that is gone fails."""
    with a_pair() as (one, two):
        two.close()

        with pytest.raises(ConnectionError):
            one.fill(memoryview(bytearray(1)))


def test_a_wait_ends_at_its_limit():
    """Nothing comes, and what is put stays as nobody reads it: both waits end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        right = socket.create_connection(server.getsockname(), 30.0)
        left, _ = server.accept()
    own = Neighbours(left, right, limit_s=0.2)

    with pytest.raises(TimeoutError, match=r"nothing went or came for 0\.2 s"):
        own.fill(memoryview(bytearray(1)))
    own.put(memoryview(bytes(64 << 20)))
    with pytest.raises(TimeoutError, match=r"nothing went or came for 0\.2 s"):
        own.flush()

    own.close()
