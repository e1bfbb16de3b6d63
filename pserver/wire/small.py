"""The small messages: generated classes, and specs to and from them.

Rooms before and after: ``client`` and ``server`` build and read the small messages with the
generated classes; what a spec is stands in ``pserver.spec``.
"""

import dataclasses
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from pserver.config import GroupSettings
from pserver.errors import ShapeError
from pserver.spec import DenseSpec, TableSpec
from pserver.v1 import pserver_pb2 as pb

_MAY_BE_LEFT_OUT = (
    "accessor",
    "embedx_optimizer",
    "admission",
    "on_nan",
    "unknown_reads",
    "row_dtype",
    "storage",
    "evict",
)

M = TypeVar("M", bound=Message)


def parse_small(kind: type[M], message: bytes) -> M:
    """Read a small message.

    Raises:
        ShapeError: the bytes are not one.
    """
    try:
        parsed: M = kind.FromString(message)
    except DecodeError as error:
        raise ShapeError(f"bytes are no {kind.__name__}: {error}") from error
    return parsed


def build_small(message: Message) -> bytes:
    """Return the bytes of a small message."""
    encoded: bytes = message.SerializeToString()
    return encoded


def spec_of(message: pb.TableSpec) -> TableSpec:
    """Return the spec that a message holds; words that it leaves out have their default.

    Raises:
        ConfigError: a field is out of range.
    """
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(TableSpec)}
    return TableSpec(**{n: v for n, v in values.items() if v or n not in _MAY_BE_LEFT_OUT})


def proto_of(spec: TableSpec) -> pb.TableSpec:
    """Return the message that holds a spec."""
    return pb.TableSpec(**dataclasses.asdict(spec))


def dense_spec_of(message: pb.DenseSpec) -> DenseSpec:
    """Return the spec of a dense table that a message holds.

    Raises:
        ConfigError: a field is out of range.
    """
    return DenseSpec(name=message.name, length=message.length, optimizer=message.optimizer)


def dense_proto_of(spec: DenseSpec) -> pb.DenseSpec:
    """Return the message that holds the spec of a dense table."""
    return pb.DenseSpec(**dataclasses.asdict(spec))


def group_proto_of(settings: GroupSettings) -> pb.GroupSpec:
    """Return the message that holds what the trainers of a group agree on."""
    most = settings.max_staleness
    return pb.GroupSpec(
        mode=settings.mode,
        trainers=settings.trainers,
        sync_divisor=settings.sync_divisor,
        on_missing=settings.on_missing,
        barrier_timeout=settings.barrier_timeout,
        max_staleness=0 if most is None else most + 1,
        staleness_lr=settings.staleness_lr,
    )


def group_of(request: pb.JoinRequest) -> GroupSettings:
    """Return the settings that a trainer joins with.

    Raises:
        ConfigError: one of them is out of range.
    """
    group = request.group
    values = {
        "mode": group.mode,
        "trainer_id": request.trainer_id,
        "trainers": group.trainers,
        "sync_divisor": group.sync_divisor,
        "on_missing": group.on_missing,
        "barrier_timeout": group.barrier_timeout,
        "max_staleness": group.max_staleness - 1 if group.max_staleness else None,
        "staleness_lr": group.staleness_lr,
        "lease_s": request.lease_s,
    }
    return GroupSettings.make(values, origins={})
