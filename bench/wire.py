"""The wire alone: building and reading the large messages, beside copying the same bytes."""

from typing import Any

import numpy as np

from bench.common import DIM, distinct_keys, measure
from pserver.kernel import rows
from pserver.v1 import pserver_pb2 as pb
from pserver.wire import PushId, TableSize, build_push, parse_push

_INNER = 50


def run() -> dict[str, Any]:
    """Return microseconds a push of 27,600 keys, ours and the generated classes'."""
    (keys,) = distinct_keys(1)
    values = np.random.default_rng(0).standard_normal(keys.size * DIM).astype(np.float32)
    order = np.arange(keys.size)
    push_id = PushId(b"0123456789abcdef", 1)

    def build(_: int) -> bytes:
        message, (block,) = build_push(1, push_id, [TableSize("t", keys.size, values.size, 0)])
        rows.pick(keys, order, block.keys)
        rows.take(values, DIM, order, block.values)
        return message

    def build_generated(_: int) -> bytes:
        table = pb.TablePush(table="t", keys=keys.tobytes(), values=values.tobytes())
        request = pb.PushRequest(incarnation=1, trainer=push_id.trainer, tables=[table])
        serialized: bytes = request.SerializeToString()
        return serialized

    message = build(0)
    target = bytearray(message)

    def copy(_: int) -> None:
        target[:] = message

    def parse_generated(_: int) -> np.ndarray:
        return np.frombuffer(pb.PushRequest.FromString(message).tables[0].values, np.float32)

    def us(work: Any) -> float:
        return 1e6 * measure(work, inner=_INNER).median

    return {
        "message_bytes": len(message),
        "build_us": us(build),
        "build_generated_us": us(build_generated),
        "parse_us": us(lambda _: parse_push(message)),
        "parse_generated_us": us(parse_generated),
        "copy_us": us(copy),
    }
