"""What ``trainer config explain`` shows: each setting, its value, and where the value came from.

Rooms before and after: ``cli`` brings resolved settings and their origins, and prints what stands here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rich.table import Table

from trainer.config import RunSettings
from trainer.settings.split import reads
from trainer.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting.

    Attributes:
        name: of the setting.
        value: in force.
        origin: ``flag --x``, ``environment X``, ``FILE:TABLE.KEY``, ``alias`` and one of those, or
            ``default``.
        idle_with: the mode, role or pipeline that has no use for it; empty if it is read.
    """

    name: str
    value: object
    origin: str
    idle_with: str

    @property
    def is_read(self) -> bool:
        """Return whether it has an effect."""
        return not self.idle_with

    def as_dict(self) -> dict[str, object]:
        """Return what ``--json`` prints for it."""
        return {"value": self.value, "from": self.origin, "read": self.is_read}


def explain(settings: RunSettings, origins: Mapping[str, str]) -> list[Explained]:
    """Return every setting of a run, those of the strategy first.

    Args:
        settings: of the run.
        origins: where each value came from, as ``pserver.resolve`` returns them.
    """
    strategy = settings.strategy()
    read = strategy.in_force()
    names = dict.fromkeys([*Strategy.model_fields, *RunSettings.model_fields])
    explained = []
    for name in names:
        own = getattr(settings, name)
        value = getattr(strategy, name, own)
        origin = origins[name]
        if value != own:  # the dense part of several trainers
            origin = f"default with {settings.trainers} trainers"
        is_read = name in read or name not in Strategy.model_fields or settings.reads_anyway(name)
        if name.startswith("master"):
            meets = settings.role == "dense" or settings.stages > 1
            is_read = strategy.dense == "allreduce" or meets
        idle_with = "" if is_read else f"mode {settings.mode}"
        if not reads(settings, name):
            idle_with = "a pipeline" if settings.stages > 1 else f"role {settings.role}"
        explained.append(Explained(name, value, origin, idle_with))
    return explained


def explained_table(explained: list[Explained]) -> Table:
    """Return the settings for a person."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for item in explained:
        value = "none" if item.value is None else str(item.value)
        note = "" if item.is_read else f" (not read in {item.idle_with})"
        table.add_row(item.name, value, item.origin + note, style=None if item.is_read else "dim")
    return table
