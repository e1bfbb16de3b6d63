"""Which way each tensor of a run goes, and why: what a run with averaged dense parts shows at its start.

Rooms before and after: ``job`` writes it once everything is made; facts come from the model and from
``modes.dense_buckets``.
"""

from collections.abc import Sequence

import torch

from collective import plan_text
from trainer.config import RunSettings
from trainer.embedding import EmbeddingBag
from trainer.modes.dense_buckets import InBuckets
from trainer.settings.computing import sharding_degree
from trainer.strategy import Strategy

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def ways_text(
    bag: EmbeddingBag, module: torch.nn.Module, dense: InBuckets, strategy: Strategy
) -> str:
    """Return a table of the tensors, the plan of the buckets, and what ``auto`` measured."""
    bucket_of = {
        name: number for number, bucket in enumerate(dense.buckets) for name in bucket.names
    }
    how = "gradients averaged"
    if strategy.local_sgd_steps is not None:
        how = f"parameters averaged every {strategy.local_sgd_steps} steps"
    rows = [("tensor", "shape", "bytes", "way")]
    rows.append(
        (
            bag.spec.name,
            f"(rows, {bag.spec.dim})",
            f"{bag.spec.dim * _BYTES[bag.spec.row_dtype]} a row",
            f"servers, mode {strategy.mode}: a batch touches few of its rows",
        )
    )
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        way = "stays here: no gradients"
        if name in bucket_of:
            number = bucket_of[name]
            by = dense.summer.way(dense.buckets[number].num_bytes)
            way = f"all-reduce, bucket {number} by {by}: every step changes all of it"
        num_bytes = tensor.numel() * tensor.element_size()
        rows.append((name, str(tuple(tensor.shape)), f"{num_bytes:,}", way))
    head = f"{how} over {dense.group.world_size} trainers"
    parts = [head, _aligned(rows), plan_text(dense.buckets, dense.summer)]
    if dense.summer.table:
        parts.append(_measured_text(dense))
    return "\n".join(parts)


def sharing_text(module: torch.nn.Module, settings: RunSettings) -> str:
    """Return what trainers share of the dense part."""
    degree, stage = sharding_degree(settings), settings.sharding_stage
    what = {1: "optimizer state", 2: "optimizer state and gradients"}
    shared = what.get(stage or 0, "optimizer state, gradients and parameters")
    copies = settings.trainers // degree
    count = sum(parameter.numel() for parameter in module.parameters())
    alike = "" if copies == 1 else f", {copies} copies of which are averaged"
    return (
        f"gradients averaged over {settings.trainers} trainers each step; {shared} of the dense part shared "
        f"by {degree} of them{alike}; {count:,} parameters here"
    )


def _measured_text(dense: InBuckets) -> str:
    """Return what ``auto`` measured, in milliseconds."""
    ways = list(dense.summer.table[0].seconds)
    rows = [("measured", *(f"{way} ms" for way in ways), "taken")]
    for row in dense.summer.table:
        times = (f"{1e3 * row.seconds[way]:.3f}" for way in ways)
        rows.append((f"{row.size_bytes >> 10:,} KiB", *times, row.way))
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of words in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
