"""Saves to test with: the steps of the method Save, asked as clients ask them."""

import asyncio
from pathlib import Path
from typing import Any

from pserver.checkpoint.local import LocalStore
from pserver.server.servicer import Servicer
from pserver.spec import TableSpec
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import parse_small
from tests.unit.server.messages import create

SPEC = TableSpec(name="t", dim=1, optimizer="sgd:lr=1", capacity_max=10_000)


async def step(servicer: Servicer, step: str, save_id: str = "one", **fields: Any) -> pb.SaveReply:
    request = pb.SaveRequest(save_id=save_id, step=step, **fields)
    return parse_small(pb.SaveReply, await servicer.call("Save", request.SerializeToString()))


async def until_done(servicer: Servicer, save_id: str = "one") -> pb.SaveReply:
    while (reply := await step(servicer, "look", save_id)).state == "copying":  # noqa: ASYNC110 - as clients do
        await asyncio.sleep(0.001)
    return reply


async def until_published(servicer: Servicer, save_id: str = "one") -> pb.SaveReply:
    while (reply := await step(servicer, "look", save_id)).state != "published":
        assert reply.state != "failed", reply.error
        await asyncio.sleep(0.001)
    return reply


async def until_failed(servicer: Servicer) -> str:
    while (reply := await step(servicer, "look")).state != "failed":
        assert reply.state != "published"
        await asyncio.sleep(0.001)
    return reply.error


def shards_of(folder: Path, num_shards: int) -> list[Servicer]:
    made = [
        Servicer(shard=i, num_shards=num_shards, queue_max=16, store=LocalStore(folder))
        for i in range(num_shards)
    ]
    for servicer in made:
        create(servicer, SPEC)
    return made


async def committed(shards: list[Servicer]) -> None:
    """Take a save on some shards as far as its client does."""
    first = await step(shards[0], "begin", mode="full")
    for other in shards[1:]:
        await step(other, "begin", mode="full", version=first.version)
    for shard in shards:
        await step(shard, "cut", epoch=first.epoch)
        await step(shard, "commit")
