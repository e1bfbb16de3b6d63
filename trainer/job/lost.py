"""What shards lost that came back without what they held: told by each trainer, added up, put into words.

Rooms before and after: ``job`` asks its client when a trainer ends, ``launch`` adds up what all of them told and
looks at what is there then; ``summary`` shows it.

What always holds: a push is counted by the trainer that had its acknowledgement, and once. One that a shard
acknowledged to a trainer which had ended before the shard came back is counted too, since the trainer said which
process acknowledged it.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Told: TypeAlias = dict[str, int]
"""The fields of ``pserver.Lost``."""


def settled(told: Sequence[Mapping[str, int]], now: Mapping[int, int]) -> list[Told]:
    """Return what one trainer told, with what was lost since.

    Args:
        told: of each shard.
        now: the incarnation of each shard that answers, by its index.

    >>> settled([{"shard": 0, "restarts": 1, "pushes": 5, "rows": 9, "incarnation": 7,
    ...           "held_pushes": 3, "held_rows": 4}], {0: 8})
    [{'shard': 0, 'restarts': 2, 'pushes': 8, 'rows': 13, 'incarnation': 8, 'held_pushes': 0, 'held_rows': 0}]
    """
    settled = []
    for one in told:
        is_gone = now.get(one["shard"], one["incarnation"]) != one["incarnation"]
        settled.append(
            {
                "shard": one["shard"],
                "restarts": one["restarts"] + is_gone,
                "pushes": one["pushes"] + is_gone * one["held_pushes"],
                "rows": one["rows"] + is_gone * one["held_rows"],
                "incarnation": now[one["shard"]] if is_gone else one["incarnation"],
                "held_pushes": 0 if is_gone else one["held_pushes"],
                "held_rows": 0 if is_gone else one["held_rows"],
            }
        )
    return settled


def merged_lost(lists: Sequence[Sequence[Mapping[str, int]]]) -> list[Told]:
    """Return what all trainers told as one: pushes are added, the rest is what the one knows that saw most.

    >>> one = {"shard": 1, "restarts": 2, "pushes": 5, "rows": 9, "held_pushes": 1}
    >>> merged_lost([[one], [{**one, "restarts": 1, "pushes": 3}]])
    [{'shard': 1, 'restarts': 2, 'pushes': 8, 'rows': 9, 'held_pushes': 2}]
    """
    merged: dict[int, Told] = {}
    for told in (told for one in lists for told in one):
        so_far = merged.setdefault(told["shard"], dict.fromkeys(told, 0))
        for name, value in told.items():
            is_added = name in ("pushes", "held_pushes")
            so_far[name] = so_far[name] + value if is_added else max(so_far[name], value)
    return [merged[shard] for shard in sorted(merged)]


def lost_texts(lost: Sequence[Mapping[str, int]]) -> list[str]:
    """Return what a person is told of it.

    >>> print(lost_texts([{"shard": 1, "restarts": 2, "pushes": 8, "rows": 9}, {"shard": 2, "restarts": 0}])[0])
    shard 1 came back without what it held, 2 times: 8 acknowledged pushes to it are lost, and the state of the \
9 rows that it was last heard to hold; give servers --journal to lose nothing
    """
    return [
        f"shard {one['shard']} came back without what it held, {one['restarts']} "
        f"time{'s' if one['restarts'] > 1 else ''}: {one['pushes']} acknowledged pushes to it are lost, "
        f"and the state of the {one['rows']} rows that it was last heard to hold; give servers --journal "
        "to lose nothing"
        for one in lost
        if one["restarts"]
    ]
