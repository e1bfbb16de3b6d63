"""Connections on which nothing happens stay open: pings are no reason to close one (B11)."""

import asyncio
import time

import grpc
import pytest

from pserver.transport import SERVICE, client_options
from tests.integration.servers import WAIT_S, Start

IDLE_S = 45.0
OFTEN: list[tuple[str, int | str]] = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]


@pytest.mark.slow
def test_b11_an_idle_connection_that_pings_every_10_s_is_not_closed(start: Start) -> None:
    """The server's default would call four such pings too many and close it."""
    server = start().wait_ready()

    async def idle() -> float:
        options = [*(o for o in client_options() if o[0] != OFTEN[0][0]), *OFTEN]
        async with grpc.aio.insecure_channel(server.endpoint, options=options) as channel:
            describe = channel.unary_unary(f"/{SERVICE}/Describe")
            await describe(b"", timeout=WAIT_S)
            begin = time.monotonic()
            with pytest.raises(TimeoutError):  # its state stays what it is
                await asyncio.wait_for(
                    channel.wait_for_state_change(grpc.ChannelConnectivity.READY), IDLE_S
                )
            await describe(b"", timeout=WAIT_S)
            assert channel.get_state() is grpc.ChannelConnectivity.READY
            return time.monotonic() - begin

    assert asyncio.run(idle()) >= IDLE_S - 1.0
