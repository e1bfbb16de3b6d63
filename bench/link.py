"""A link between trainers and a server that is as far and as narrow as a benchmark wants.

Rooms before and after: ``modes`` and ``overlap`` put one before each server. It relays bytes and knows
nothing of what they are; a thread with its own event loop does it. Unlike the faulty proxy of the tests
it loses nothing, and bytes that are on their way do not hold up those behind them: what a chunk waits for
is the link's width, and then the way.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_CHUNK = 1 << 16
_CHUNKS_MAX = 1024  # on their way in one direction of a connection: 64 MiB
_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Link:
    """What a link is like.

    Attributes:
        round_trip_s: there and back, of a message of no length.
        bytes_per_s: that pass in each direction, over all connections to a server; None: any number.
    """

    round_trip_s: float = 0.0
    bytes_per_s: float | None = None


class _Lane:
    """One direction of the link to one server: when it is free again. Owner: the event loop."""

    def __init__(self) -> None:
        self.free_s = 0.0


class Links:
    """One link before each server, as a context manager. ``shape`` may be set while it is in use.

    Attributes:
        shape: of all of them.
        endpoints: where they listen, in the order of the servers.
    """

    def __init__(self, targets: Sequence[str], shape: Link) -> None:
        """Say where they lead.

        Args:
            targets: HOST:PORT of each server.
            shape: of the links.
        """
        self.shape = shape
        self.endpoints: list[str] = []
        self._targets = list(targets)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "Links":
        """Begin to listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(_WAIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cut what is open, and end the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    async def _open(self) -> None:
        for target in self._targets:
            host, _, port = target.rpartition(":")
            there, back = _Lane(), _Lane()

            async def accept(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                far: tuple[str, int] = (host, int(port)),
                lanes: tuple[_Lane, _Lane] = (there, back),
            ) -> None:
                await self._accept(reader, writer, far, lanes)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            self.endpoints.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far: tuple[str, int],
        lanes: tuple[_Lane, _Lane],
    ) -> None:
        """Carry one connection until one side ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection(*far)
                try:
                    await _first_of(
                        self._read(reader, far_writer, lanes[0]),
                        self._read(far_reader, writer, lanes[1]),
                    )
                finally:
                    far_writer.transport.abort()
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _read(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lane: _Lane
    ) -> None:
        """Send the bytes of one direction on their way; return at their end."""
        on_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_MAX)
        arriving = asyncio.ensure_future(_arrive(on_way, writer))
        try:
            while chunk := await reader.read(_CHUNK):
                shape, now = self.shape, self._loop.time()
                wide_s = len(chunk) / shape.bytes_per_s if shape.bytes_per_s else 0.0
                lane.free_s = max(lane.free_s, now) + wide_s
                await on_way.put((lane.free_s + shape.round_trip_s / 2.0, chunk))
        finally:
            arriving.cancel()


async def _arrive(
    on_way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter
) -> None:
    """Hand over each chunk when it is due."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while True:
            due_s, chunk = await on_way.get()
            left_s = due_s - loop.time()
            if left_s > 0.0:
                await asyncio.sleep(left_s)
            writer.write(chunk)
            await writer.drain()


async def _first_of(*ways: Coroutine[Any, Any, None]) -> None:
    """Run both directions until one of them ends."""
    tasks = [asyncio.ensure_future(way) for way in ways]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
