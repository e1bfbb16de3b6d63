"""A shard under requests that nobody should send: each is answered, by a reply or an error of the tree."""

import asyncio
import itertools
from collections import Counter

import psutil

import pserver
from pserver.server.servicer import Servicer
from tests.fuzz import requests, tables

SEED = 20261130
NUM = 6_000  # many more go over the wire in tests/integration
A_SHARD = 2_000  # requests that one shard gets: a group that a request makes ends with it
AT_ONCE = 64  # some wait for other trainers
HANGS_S = 30.0
MIB = 1 << 20


async def answer(servicer: Servicer, method: str, message: bytes) -> str:
    """Return what came of a request; anything but a reply or an error of the tree fails the test."""
    try:
        async with asyncio.timeout(HANGS_S):
            await servicer.call(method, message)
    except pserver.InternalError as error:
        raise AssertionError(f"{method} {message.hex()}: {error}") from error
    except pserver.PserverError as error:
        return type(error).__name__
    except Exception as error:
        raise AssertionError(f"{method} {message.hex()}: {error!r}") from error
    return "OK"


async def throw(num: int) -> Counter[str]:
    """Send requests to shards, and return how often what came of them."""
    stream, came = requests(SEED), Counter[str]()
    for _ in range(num // A_SHARD):
        servicer = Servicer(shard=0, num_shards=1, queue_max=256)
        for _ in range(0, A_SHARD, AT_ONCE):
            batch = [*tables(), *itertools.islice(stream, AT_ONCE)]
            came.update(await asyncio.gather(*(answer(servicer, *request) for request in batch)))
        await servicer.call("Describe", b"")
        servicer.close()
    return came


def test_every_malformed_request_is_answered_by_an_error_of_the_tree() -> None:
    """No crash, no hang, no error of our own making, and no memory that stays."""
    process = psutil.Process()
    before = process.memory_info().rss

    came = asyncio.run(throw(NUM))

    assert came.total() >= NUM
    assert {"OK", "ShapeError", "ConfigError", "UnknownTableError"} <= set(came)
    assert process.memory_info().rss - before < 256 * MIB
