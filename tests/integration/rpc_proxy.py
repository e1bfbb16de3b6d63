"""A bad network that knows calls: requests that come twice or late, requests and replies that are lost.

It is a gRPC server that forwards bytes of any unary method to one server, and knows nothing of what is
in them. One seed decides what happens to which call. A thread with its own event loop does the
work; the test holds the switches.
"""

import asyncio
import random
import threading
from dataclasses import dataclass
from types import TracebackType

import grpc
from typing_extensions import override

from pserver.transport import client_options, server_options

WAIT_S = 30.0


@dataclass
class Faults:
    """The share of the calls, in [0, 1], to which something happens.

    Attributes:
        twice: the server gets the request a second time, before the client has its answer.
        late: the server gets it once more when others came in between.
        lost_requests: the server does not get it; the client is told that the server is unavailable.
        lost_replies: the server does it, and the client is told the same.
        delay_s: the longest that a request is held back, so that it is overtaken.
    """

    twice: float = 0.0
    late: float = 0.0
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    delay_s: float = 0.0


class RpcProxy(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc has no types
    """Listens on a free port and forwards calls to one endpoint, as a context manager.

    Attributes:
        faults: what goes wrong from now on.
        num_repeats: requests that the server got again.
        num_lost: requests and replies that were lost.
    """

    def __init__(self, target: str, *, seed: int = 0, faults: Faults | None = None) -> None:
        """Say whose calls it forwards, and how bad the network is."""
        self.faults = faults or Faults()
        self.num_repeats = self.num_lost = 0
        self.endpoint = ""
        self._target = target
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._late: set[asyncio.Task[None]] = set()

    def __enter__(self) -> "RpcProxy":
        """Begin to listen."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(WAIT_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End what is open, and the thread."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _open(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._target, options=client_options())
        self._server = grpc.aio.server(options=server_options())
        self._server.add_generic_rpc_handlers((self,))
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def _close(self) -> None:
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._server.stop(0)
        await self._channel.close()

    @override
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """Return what answers any method."""
        call = self._channel.unary_unary(details.method)

        async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
            return await self._forward(call, request, context)

        return grpc.unary_unary_rpc_method_handler(answer)

    def _happens(self, share: float) -> bool:
        return share > 0.0 and self._random.random() < share

    async def _forward(
        self,
        call: grpc.aio.UnaryUnaryMultiCallable,
        request: bytes,
        context: grpc.aio.ServicerContext,
    ) -> bytes:
        """Forward one call, or what is left of it."""
        faults, left_s = self.faults, context.time_remaining()
        if faults.delay_s:
            await asyncio.sleep(self._random.random() * faults.delay_s)
        if self._happens(faults.lost_requests):
            self.num_lost += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the request was lost")
        if self._happens(faults.late):
            self.num_repeats += 1
            task = asyncio.ensure_future(self._repeat(call, request, self._random.random()))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        try:
            if self._happens(faults.twice):
                self.num_repeats += 1
                await call(request, timeout=left_s)
            reply: bytes = await call(request, timeout=left_s)
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "")
            raise  # which ``abort`` did already, but does not say
        if self._happens(faults.lost_replies):
            self.num_lost += 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the reply was lost")
        return reply

    async def _repeat(
        self, call: grpc.aio.UnaryUnaryMultiCallable, request: bytes, delay_s: float
    ) -> None:
        """Send a request once more, some time later."""
        await asyncio.sleep(delay_s)
        try:
            await call(request, timeout=WAIT_S)
        except grpc.aio.AioRpcError:
            return  # whatever the server says to it, nobody waits for that
