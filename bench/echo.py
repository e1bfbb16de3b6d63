"""A bare gRPC server that answers with bytes made beforehand: the ceiling of any RPC.

Run as a process: ``python -m bench.echo``. The same options and malloc settings as a pserver, no
parsing, no table. A request's first four bytes say how many bytes come back.
"""

import os

import grpc
import uvloop

from pserver.malloc import keep_large_blocks
from pserver.transport import server_options

SERVICE = "bench.Echo"
METHOD = f"/{SERVICE}/Echo"


async def _main() -> None:
    keep_large_blocks()
    replies: dict[bytes, bytes] = {}

    async def echo(message: bytes, _context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        head = message[:4]
        if head not in replies:
            # Not zeros: untouched memory is one page that never leaves the first-level cache.
            replies[head] = os.urandom(int.from_bytes(head, "little"))
        return replies[head]

    server = grpc.aio.server(options=server_options())
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_main())
