"""A bad network: a TCP proxy that delays, cuts connections in the middle, stalls, is narrow or mute.

It stands between one client and one server, and knows nothing of what it carries. One seed decides
where connections are cut, so that a run can be repeated as far as timing allows. A thread with its
own event loop does the work; the test holds the switches. ``rpc_proxy`` is the one that knows calls.
"""

import asyncio
import contextlib
import random
import threading
from types import TracebackType

WAIT_S = 30.0
_CHUNK = 1 << 16


class Proxy:
    """Listens on a free port and forwards to one endpoint, as a context manager."""

    def __init__(
        self,
        target: str,
        *,
        seed: int = 0,
        cut_bytes: float | None = None,
        delay_s: float = 0.0,
        stall_bytes: int | None = None,
        bytes_per_s: float | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        """Say how bad the network is.

        Args:
            target: HOST:PORT of the server.
            seed: of where it cuts.
            cut_bytes: mean of the bytes after which a connection is cut, both ways together.
            delay_s: the longest that a chunk is held back.
            stall_bytes: from the client, after which nothing is forwarded any more.
            bytes_per_s: what passes each way of each connection.
            host: where it listens.
        """
        self.num_cuts = 0
        self.stalled = threading.Event()
        self._loses_replies = False
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._random = random.Random(seed)
        self._cut_bytes = cut_bytes
        self._delay_s = delay_s
        self._stall_bytes = stall_bytes
        self._bytes_per_s = bytes_per_s
        self._listen_host = host
        self._is_mute = False
        self.num_bytes = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._links: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.endpoint = ""

    def __enter__(self) -> "Proxy":
        """Begin to listen."""
        self._thread.start()
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cut what is open, and end the thread."""
        self.shut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    def lose_replies(self) -> None:
        """Forward requests only: what the server says from now on is lost."""
        self._loses_replies = True

    def swallow(self) -> None:
        """Accept connections and forward nothing from now on, either way: a black hole."""
        self._is_mute = True

    def heal(self) -> None:
        """Cut, delay and lose nothing from now on; what was lost before stays lost."""
        self._cut_bytes, self._delay_s, self._loses_replies = None, 0.0, False
        self._is_mute, self._bytes_per_s = False, None

    def cut(self) -> None:
        """Cut every connection, once; new ones are welcome."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(WAIT_S)

    def open(self) -> None:
        """Listen: on a free port, or again on the one it had."""
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(WAIT_S)

    def shut(self) -> None:
        """Cut every connection and refuse new ones, as if the network were gone."""
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(WAIT_S)

    async def _open(self) -> None:
        port = int(self.endpoint.rpartition(":")[2] or 0)
        self._server = await asyncio.start_server(self._accept, self._listen_host, port)
        self.endpoint = f"{self._listen_host}:{self._server.sockets[0].getsockname()[1]}"

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection until it ends or is cut."""
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
                try:
                    await self._carry((reader, writer), (far_reader, far_writer))
                finally:
                    far_writer.transport.abort()
        finally:
            writer.transport.abort()
            self._links.discard(link)

    async def _carry(
        self,
        near: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        far: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        """Forward both ways until one side ends or the bytes until the cut are used up."""
        left = None if self._cut_bytes is None else self._random.expovariate(1 / self._cut_bytes)
        budget = [left]
        ways = [
            asyncio.ensure_future(self._forward(near[0], far[1], budget, is_reply=False)),
            asyncio.ensure_future(self._forward(far[0], near[1], budget, is_reply=True)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        budget: list[float | None],
        *,
        is_reply: bool,
    ) -> None:
        """Forward one way; return at the end of the stream, or where the connection is cut."""
        num_bytes = 0
        stall_bytes = None if is_reply else self._stall_bytes
        while chunk := await reader.read(_CHUNK):
            if stall_bytes is not None and num_bytes + len(chunk) > stall_bytes:
                writer.write(chunk[: stall_bytes - num_bytes])
                await writer.drain()
                self.stalled.set()
                await asyncio.Event().wait()  # until the connection is gone
            num_bytes += len(chunk)
            if self._is_mute or (is_reply and self._loses_replies):
                continue
            self.num_bytes += len(chunk)
            if self._bytes_per_s:
                await asyncio.sleep(len(chunk) / self._bytes_per_s)
            if self._delay_s:
                await asyncio.sleep(self._random.random() * self._delay_s)
            left = budget[0]
            if left is not None and self._cut_bytes is not None:
                budget[0] = left - len(chunk)
                if left < len(chunk):
                    writer.write(chunk[: int(left)])
                    await writer.drain()
                    self.num_cuts += 1
                    return
            writer.write(chunk)
            await writer.drain()
