"""One pserver process: puts the parts together, listens, and drains.

Rooms before and after: ``cli`` brings settings; behind the port is ``servicer``.

Life: kernels are compiled or loaded, the port is opened, health says SERVING. The first SIGTERM
or SIGINT drains: health says NOT_SERVING, new requests are refused as unavailable, calls in
flight finish, exit 0. A second signal ends the process at once. Both work as process 1 of a
container.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from pserver import compile_cache
from pserver.checkpoint.local import LocalStore
from pserver.checkpoint.places import open_store
from pserver.config import ServeSettings
from pserver.errors import ConfigError, ForbiddenError, UnauthenticatedError
from pserver.journal.commit import loss_bound
from pserver.journal.folder import segments
from pserver.journal.place import Place
from pserver.journal.writer import Begun, Journal
from pserver.malloc import keep_large_blocks
from pserver.server.audit import AUDITED, Audit
from pserver.server.auth import Access
from pserver.server.copies import BASE, Copies
from pserver.server.follow import Follower
from pserver.server.methods import METHODS, SHORT
from pserver.server.metrics_page import start_metrics_page
from pserver.server.quota import quota_of
from pserver.server.secure import check_binds, port_credentials
from pserver.server.servicer import Servicer
from pserver.server.standby import Primary, stand_by, tell_old
from pserver.status import ERROR_KEY, to_status
from pserver.table.sparse import warmup
from pserver.table.storage import open_storage
from pserver.tls import FreshTls, tls_of
from pserver.trace.call import answering
from pserver.transport import SERVICE, server_options, split_endpoint

log = structlog.get_logger(__name__)

_SWITCH_S = 0.0002
"""How long a thread that wants the interpreter lets another one keep it. With Python's 5 ms the owner
thread can wait for the event loop between two kernels. What `bench rpc` gains by it lies within its
noise (0 to 15 % in paired runs); the longest wait is what this bounds."""

SECOND_SIGNAL_EXIT = 130
"""Exit status when a second signal cut the drain short."""

Handler = Callable[[bytes, "grpc.aio.ServicerContext[bytes, bytes]"], Awaitable[bytes]]


def _handler(servicer: Servicer, method: str, access: Access, audit: Audit) -> Handler:
    """Return the function that gRPC calls for a method.

    A call is judged here, before the servicer sees it: embedded mode has no port and asks for no token.
    """
    answer = answering(servicer.call)

    async def handle(message: bytes, context: "grpc.aio.ServicerContext[bytes, bytes]") -> bytes:
        token, outcome = "", "CANCELLED"  # what it stays if the caller goes away
        try:
            if not access.is_open:
                grant = access.grant_of(context.invocation_metadata() or ())
                token = grant.name
                access.check(grant, method, message)
            if servicer.role.fence.place.is_of_a_pair:
                servicer.role.fence.meet(context.invocation_metadata() or ())
            reply = await answer(method, message, context)
            outcome = "OK"
        except Exception as error:
            code, text, outcome = to_status(error)
            if isinstance(error, UnauthenticatedError | ForbiddenError):
                servicer.metrics.count(
                    method, code.name, seconds=0.0, received=len(message), sent=0
                )
            if outcome == "InternalError":
                log.exception("request failed by our own mistake", method=method)
            await context.abort(code, text, ((ERROR_KEY, outcome),))
            raise AssertionError("abort always raises") from error
        else:
            return reply
        finally:
            if method in AUDITED:
                audit.tell(method, message, token=token, peer=context, outcome=outcome)

    return handle


@dataclass(frozen=True, slots=True)
class Listening:
    """A server that listens: its parts and the port it got."""

    server: grpc.aio.Server
    health: health.aio.HealthServicer
    port: int


async def listen(
    servicer: Servicer, *, bind: str, access: Access | None = None, tls: FreshTls | None = None
) -> Listening:
    """Open the port and serve.

    Args:
        servicer: answers.
        bind: HOST:PORT; port 0 takes a free one.
        access: the tokens; None: everybody may do everything. With tokens there is no reflection, which asks
            for none; health is told to all.
        tls: of the port; None: plain.

    Raises:
        ConfigError: the port is taken or not ours to open; the message names it.
    """
    split_endpoint(bind, where="--bind")
    server = grpc.aio.server(options=server_options())
    judge, audit = access or Access(None), Audit()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(_handler(servicer, name, judge, audit))
        for name in METHODS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if judge.is_open:
        reflection.enable_server_reflection(
            (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
    try:
        if tls is None:
            port = server.add_insecure_port(bind)
        else:
            port = server.add_secure_port(bind, port_credentials(tls))
    except RuntimeError as error:
        raise ConfigError(
            f"--bind {bind}: cannot listen there: the port is taken or not allowed ({error})"
        ) from error
    await server.start()
    for name in ("", SERVICE):
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return Listening(server, health_servicer, port)


async def drain(servicer: Servicer, listening: Listening, *, drain_s: float) -> None:
    """Refuse new work, finish what is in, then close.

    Args:
        servicer: of the shard.
        listening: its server.
        drain_s: seconds that calls in flight get.
    """
    servicer.is_draining = True
    await listening.health.enter_graceful_shutdown()
    await listening.server.stop(drain_s)
    await servicer.end_saves()
    servicer.close()


def _start_metrics(servicer: Servicer, settings: ServeSettings) -> None:
    """Serve the Prometheus page, if it is asked for, from a thread with files of its own."""
    if settings.metrics_bind is not None:
        start_metrics_page(
            servicer.metrics.registry,
            settings.metrics_bind,
            tls=tls_of(settings),
            access=Access(settings.token_file),
        )


async def _restore(
    servicer: Servicer,
    settings: ServeSettings,
    announce: Callable[[str], None],
    connect: Callable[[str], Primary],
) -> None:
    """Bring back what the settings ask for, and begin to record, or to follow."""
    restore = None if settings.restore == "none" else settings.restore
    if settings.journal is None:
        if restore is not None:
            announce(servicer.recovery.restored_line(await servicer.loads.restore(restore)))
        return
    folder = Path(settings.journal)

    def opened(begun: Begun) -> Journal:
        return Journal(
            folder,
            shard=settings.shard,
            num_shards=settings.shards,
            begun=begun,
            fsync=settings.fsync,
            interval_s=settings.fsync_interval_ms / 1e3,
        )

    if settings.acknowledge == "standby":
        servicer.wait_for_standby()
    fence, base = servicer.role.fence, folder / BASE
    fence.open(folder)
    servicer.role.feed.copies = Copies(servicer.recovery)
    if base.is_dir():
        servicer.recovery.bases.append(LocalStore(base))
    if settings.standby_of is not None and fence.place.role != "promoted":
        servicer.role.standby, lines = await stand_by(
            connect(settings.standby_of),
            opened,
            servicer.recovery,
            fence,
            new_base=None if segments(folder) else base,
        )
    else:
        lines = _place_lines(folder, fence.place, settings.standby_of)
        if settings.standby_of is not None:
            restore = "latest"  # as a standby comes back
        lines += await servicer.recovery.begin(opened(Begun(servicer.incarnation)), restore)
    for line in lines:
        announce(line)
    announce(f"journal {folder}: {loss_bound(settings.fsync, settings.fsync_interval_ms)}")


def _place_lines(folder: Path, place: Place, standby_of: str | None) -> list[str]:
    """Return what there is to say of the place of a server that does not follow.

    Raises:
        ConfigError: it followed, and nobody made it the shard.
    """
    if place.role == "standby":
        raise ConfigError(
            f"--journal {folder}: is that of a standby that was not promoted; give --standby-of, and "
            "`pserver promote` it when it is to take its server's place"
        )
    lines = []
    if place.newer:
        lines.append(
            f"a server with term {place.newer} took this one's place: it takes no requests"
        )
    elif place.is_followed:
        lines.append(
            "takes requests when its standby asks again, for that may have taken its place"
        )
    elif standby_of is not None:
        lines.append(f"term {place.term}: took the place of {standby_of}, and is the shard")
    return lines


async def _is_restored(restoring: Coroutine[Any, Any, None], signals: "asyncio.Queue[int]") -> bool:
    """Restore, and return whether that came to its end: a signal ends it early."""
    work = asyncio.create_task(restoring)
    waiting = asyncio.create_task(signals.get())
    await asyncio.wait((work, waiting), return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        log.info("ended before it served", signal=signal.Signals(waiting.result()).name)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return False
    waiting.cancel()
    await work
    return True


def _following(
    servicer: Servicer, settings: ServeSettings, connect: Callable[[str], Primary]
) -> "asyncio.Task[None] | None":
    """Begin to follow another server, or newer versions, if the settings say so."""
    if settings.follow:
        return asyncio.create_task(Follower(servicer.loads).run())
    if servicer.role.standby is not None:
        return asyncio.create_task(servicer.role.standby.run())
    journal = servicer.role.feed.recorder.journal
    if settings.standby_of is not None and journal is not None:  # promoted before it was restarted
        fence = servicer.role.fence
        return asyncio.create_task(tell_old(connect(settings.standby_of), journal.number, fence))
    return None


def _servicer(settings: ServeSettings) -> Servicer:
    """Return the shard that the settings describe, without tables."""
    servicer = Servicer(
        shard=settings.shard,
        num_shards=settings.shards,
        queue_max=settings.queue_max,
        storage=open_storage(settings.storage_dir),
        on_loop=() if settings.storage_dir else SHORT,  # a row on a file may wait for a disk
        store=open_store(
            settings.checkpoint_dir, where="--checkpoint-dir", writes=not settings.read_only
        ),
    )
    servicer.is_read_only = servicer.loads.only_reads = settings.read_only
    if settings.unknown_reads != "table":
        servicer.pushes.registry.unknown_reads = settings.unknown_reads
    servicer.quota = quota_of(settings, servicer.pushes, servicer.role.feed.recorder.note)
    return servicer


async def serve(
    settings: ServeSettings,
    *,
    announce: Callable[[str], None],
    connect: Callable[[str], Primary],
) -> None:
    """Run one pserver until a signal ends it.

    Args:
        settings: of the process.
        announce: is given the one line that says where the shard listens, once it is ready.
        connect: makes a channel to a server, for a standby.

    Raises:
        ConfigError: a setting cannot work; nothing was started.
    """
    keep_large_blocks()
    sys.setswitchinterval(_SWITCH_S)
    log.info("starting", **settings.model_dump())
    if compile_cache.TEMPORARY is not None:
        log.info("the compile cache cannot be written to", copied_to=compile_cache.TEMPORARY)
    check_binds(settings)
    tls, access = tls_of(settings), Access(settings.token_file)
    servicer = _servicer(settings)
    # Before the warm-up: process 1 of a container ignores a signal that nobody handles.
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    warmup()
    if not await _is_restored(_restore(servicer, settings, announce, connect), signals):
        servicer.close()
        return
    gc.freeze()  # a full collection would go through all modules: 140 ms, in which nobody is answered
    _start_metrics(servicer, settings)
    listening = await listen(servicer, bind=settings.bind, access=access, tls=tls)
    host, _ = split_endpoint(settings.bind, where="--bind")
    announce(f"shard {settings.shard} of {settings.shards} ready on {host}:{listening.port}")

    following = _following(servicer, settings, connect)
    first = await signals.get()
    if following is not None:
        following.cancel()
    if servicer.role.standby is not None:
        await servicer.role.standby.leave()
    log.info("draining", signal=signal.Signals(first).name, drain_s=settings.drain_s)
    closing = asyncio.ensure_future(drain(servicer, listening, drain_s=settings.drain_s))
    second = asyncio.ensure_future(signals.get())
    await asyncio.wait((closing, second), return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        log.warning("second signal: calls in flight are cut off")
        os._exit(SECOND_SIGNAL_EXIT)
    second.cancel()
    await closing
    log.info("drained")
