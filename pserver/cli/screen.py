"""The screen of ``pserver top``: facts of a cluster as lines that fit a terminal.

Rooms before and after: ``cli.shards`` brings the facts, ``cli.top`` shows the lines and hands keys on.

What always holds: no line is wider than the terminal and there are no more lines than it has. What does not fit
goes by rank: columns from the least important, then rows, whose number is said.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.text import Text

_KIB = 1024.0
_STATES = {"ready": "green", "live": "green", "down": "bold red", "expired": "bold red"}
_ALARMS = {"draining", "standby", "absent", "dropped"}
_HELP: Final = "q quit  p pause  s sort shards  t sort trainers  r reverse"
_GAP = 2
_LOW = 12  # lines of a terminal that has none to spare

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its head, what it shows of a row, what rows are ordered by, and how soon it goes."""

    head: str
    text: Callable[[Facts], str]
    value: Callable[[Facts], Any]
    rank: int  # 0 stays longest
    is_left: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """How somebody wants to see it. Immutable; a key makes another one."""

    shards_by: int = 0  # a column
    trainers_by: int = 0
    is_reversed: bool = False
    is_paused: bool = False

    def after(self, key: str) -> "View":
        """Return the view after a key; an unknown key changes nothing."""
        changes: dict[str, dict[str, Any]] = {
            "s": {"shards_by": (self.shards_by + 1) % len(SHARD_COLUMNS)},
            "t": {"trainers_by": (self.trainers_by + 1) % len(TRAINER_COLUMNS)},
            "r": {"is_reversed": not self.is_reversed},
            "p": {"is_paused": not self.is_paused},
            " ": {"is_paused": not self.is_paused},
        }
        return dataclasses.replace(self, **changes.get(key, {}))


def amount(value: float | None) -> str:
    """Return a number in at most six characters.

    >>> amount(0.25), amount(12), amount(1234.0), amount(5_600_000), amount(None)
    ('0.2', '12', '1,234', '5.6M', '-')
    """
    if value is None:
        return "-"
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if letter == 'k' else limit):.3g}{letter}"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def size(num_bytes: float) -> str:
    """Return bytes in at most eight characters.

    >>> size(512), size(3 << 20), size(5 << 30)
    ('512 B', '3 MiB', '5 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < _KIB:
            return f"{num_bytes:.3g} {unit}"
        num_bytes /= _KIB
    return f"{num_bytes:.3g} TiB"


def span(seconds: float | None) -> str:
    """Return a time in at most six characters.

    >>> span(4.2), span(90), span(7300), span(None)
    ('4 s', '1m30s', '2h1m', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest}s"
    return f"{minutes // 60}h{minutes % 60}m" if minutes < 2880 else f"{minutes // 1440} d"


def p99_s(shard: Facts) -> float:
    """Return the worse p99 of pulls and pushes."""
    return max(float(shard["pull_p99_s"]), float(shard["push_p99_s"]))


def _fixed(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


SHARD_COLUMNS: Final = (
    Column("shard", lambda s: str(s["shard"]), lambda s: s["shard"], 0),
    Column("state", lambda s: str(s["state"]), lambda s: s["state"], 0, is_left=True),
    Column("pulls/s", lambda s: amount(s["pulls_per_s"]), lambda s: s["pulls_per_s"], 1),
    Column("pushes/s", lambda s: amount(s["pushes_per_s"]), lambda s: s["pushes_per_s"], 1),
    Column("p99 ms", lambda s: f"{p99_s(s) * 1e3:.1f}", p99_s, 2),
    Column("queue", lambda s: amount(s["queued"]), lambda s: s["queued"], 3),
    Column("memory", lambda s: size(s["memory_bytes"]), lambda s: s["memory_bytes"], 4),
    Column("rows", lambda s: amount(s["rows"]), lambda s: s["rows"], 5),
    Column("NaN", lambda s: amount(s["bad_pushes"]), lambda s: s["bad_pushes"], 7),
    Column(
        "saved",
        lambda s: span(s["checkpoint_age_s"]),
        lambda s: s["checkpoint_age_s"] or 0.0,
        6,
    ),
    Column("up", lambda s: span(s["uptime_s"]), lambda s: s["uptime_s"], 8),
    Column("endpoint", lambda s: str(s["endpoint"]), lambda s: s["endpoint"], 9, is_left=True),
)
"""What is shown of a shard; ``saved`` is how long ago the last checkpoint was."""

TRAINER_COLUMNS: Final = (
    Column("trainer", lambda t: str(t["trainer_id"]), lambda t: t["trainer_id"], 0),
    Column("state", lambda t: str(t["state"]), lambda t: t["state"], 0, is_left=True),
    Column(
        "samples/s", lambda t: amount(t["samples_per_s"]), lambda t: t["samples_per_s"] or 0.0, 1
    ),
    Column("step", lambda t: amount(t["step"]), lambda t: t["step"], 3),
    Column("loss", lambda t: _fixed(t["loss"]), lambda t: t["loss"] or 0.0, 1),
    Column("AUC", lambda t: _fixed(t["auc"]), lambda t: t["auc"] or 0.0, 2),
    Column("stale p99", lambda t: amount(t["staleness_p99"]), lambda t: t["staleness_p99"], 4),
    Column("seen", lambda t: span(t["last_seen_s"]), lambda t: t["last_seen_s"] or 0.0, 5),
    Column("host", lambda t: t["host"] or "-", lambda t: t["host"], 6, is_left=True),
)


def screen(
    facts: Facts | None, view: View, *, width: int, height: int, has_keys: bool = True
) -> Text:
    """Return the whole screen.

    Args:
        facts: of ``cluster_facts``; None before the first answer.
        view: how it is wanted.
        width: columns of the terminal.
        height: its lines.
        has_keys: whether somebody can press them.
    """
    if facts is None:
        return _joined([Text("asking the servers ...", style="dim")], width, height)
    shards, group = facts["shards"], facts["group"]
    trainers = [] if group is None else group["members"]
    lines = [_head(facts, view), *_troubles(shards)[: max(height - 6, 0)]]
    gap = [Text()] if trainers and height > _LOW else []
    # Beside those: heads of both lists, the line of the group, the gap, and the keys at the end.
    room = height - len(lines) - 1 - (2 + len(gap) if trainers else 0) - has_keys
    shard_rows = min(len(shards), max(room if not trainers else room - len(trainers), room // 2, 1))
    lines += _listed(shards, SHARD_COLUMNS, view.shards_by, view, width=width, rows=shard_rows)
    if trainers:
        lines += [*gap, _group_line(group)]
        rows = max(room - shard_rows, 1)
        lines += _listed(trainers, TRAINER_COLUMNS, view.trainers_by, view, width=width, rows=rows)
    if has_keys:
        lines = [*lines[: max(height - 1, 1)], Text(_HELP, style="dim")]
    return _joined(lines, width, height)


def _head(facts: Facts, view: View) -> Text:
    """Return the line of sums."""
    shards = facts["shards"]
    there = [shard for shard in shards if shard["state"] != "down"]
    rates = (sum(shard[name] for shard in there) for name in ("pulls_per_s", "pushes_per_s"))
    pulls, pushes = (amount(rate) for rate in rates)
    line = Text()
    line.append(
        f"{len(there)} of {len(shards)} shards", "bold" if len(there) == len(shards) else "bold red"
    )
    line.append(
        f"  {pulls} pulls/s  {pushes} pushes/s  {amount(sum(s['rows'] for s in there))} rows"
    )
    line.append(f"  {size(sum(s['memory_bytes'] for s in there))}  {facts['at'][11:19]} UTC")
    if view.is_paused:
        line.append("  paused", "bold yellow")
    return line


def _troubles(shards: Sequence[Facts]) -> list[Text]:
    """Return a line for each shard that is down, then for tables with NaN: three at the most."""
    told = [str(shard["error"]).splitlines()[0] for shard in shards if "error" in shard]
    told += [trouble for shard in shards for trouble in shard["troubles"]]
    return [Text(text, style="red") for text in told[:3]]


def _group_line(group: Facts) -> Text:
    line = f"{group['mode']} group of {group['trainers']}"
    if group["mode"] == "sync":
        line += f", round {group['open_round']} is open"
    if group["missing"]:
        line += f", waiting for {', '.join(map(str, group['missing']))}"
    return Text(line, style="bold")


def _listed(
    rows_of: Sequence[Facts],
    columns: Sequence[Column],
    by: int,
    view: View,
    *,
    width: int,
    rows: int,
) -> list[Text]:
    """Return the head and the first rows of a list; the last line says how many more there are."""
    # Names rise, numbers fall: what is largest is looked for.
    falls = by > 1 and not columns[by].is_left
    ordered = sorted(rows_of, key=columns[by].value, reverse=falls != view.is_reversed)
    shown = ordered if len(ordered) <= rows else ordered[: rows - 1]
    more = len(ordered) - len(shown)
    cells = [[column.text(row) for column in columns] for row in shown]
    heads = [f"{column.head}{'*' * (place == by)}" for place, column in enumerate(columns)]
    widths = [max(map(len, texts)) for texts in zip(heads, *cells, strict=True)]
    kept = _kept(columns, widths, by=by, width=width)
    lines = [_line(heads, columns, widths, kept, style="bold underline")]
    lines += [_line(row, columns, widths, kept) for row in cells]
    return [*lines, Text(f"... {more} more", style="dim")] if more else lines


def _kept(columns: Sequence[Column], widths: Sequence[int], *, by: int, width: int) -> list[int]:
    """Return which columns fit, in their order; the one that rows are ordered by is among the last to go."""
    kept = list(range(len(columns)))
    while len(kept) > 1 and sum(widths[place] + _GAP for place in kept) - _GAP > width:
        kept.remove(max(kept, key=lambda place: (place != by, columns[place].rank, place)))
    return kept


def _line(
    texts: Sequence[str],
    columns: Sequence[Column],
    widths: Sequence[int],
    kept: Sequence[int],
    *,
    style: str = "",
) -> Text:
    """Return one line of a list."""
    line = Text()
    for number, place in enumerate(kept):
        text = texts[place]
        padded = text.ljust(widths[place]) if columns[place].is_left else text.rjust(widths[place])
        colour = _STATES.get(text, "yellow" if text in _ALARMS else "")
        line.append(" " * _GAP * bool(number)).append(padded, style or colour)
    return line


def _joined(lines: Sequence[Text], width: int, height: int) -> Text:
    """Return lines as one text, none wider than the terminal."""
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return Text("\n", no_wrap=True).join(list(lines)[-height:] if height == 1 else lines[:height])
