"""The trainer's part of a checkpoint: dense weights, optimizer, random state and position in the rows.

Rooms before and after: ``job`` asks for a save after each step and for a position before the first;
``client.checkpoints`` commits all of it in one version with the tables.

What always holds: a run that is resumed goes on with the batch behind the last one that the version has
trained on: none twice, none skipped. A version is resumed by a run of the same rows and model, or refused.
In sync mode the position is the version's round, the same for every trainer, whoever asked for the save. In
async and half_async every push says how far its trainer is, pushes leave one after the other, and the version
has what the last one in it said.
Owner: the training thread.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load, save
from torch import optim

import pserver
from trainer.config import RunSettings
from trainer.dense.split import SplitDense
from trainer.dense.state import export_dense, load_dense
from trainer.loop import CtrModel, DenseStep
from trainer.modes import Mode
from trainer.modes.dense_ranks import DenseOverRanks
from trainer.modes.grouped import GroupMode
from trainer.modes.synchronous import SyncMode
from trainer.settings.every import Every, every_of
from trainer.settings.split import share_of

SAVER = 0
"""The trainer that asks for saves."""

_FILE = "trainer-0.safetensors"
_SAME = (
    "model",
    "dim",
    "seed",
    "batch_size",
    "data",
    "label_column",
    "dense_columns",
    "slot_columns",
    "rows",
    "trainers",
    "mode",
    "dense_optimizer",
)
"""Settings on which positions and weights depend."""


@dataclass(slots=True)
class RunCheckpoints:
    """Saves of one run.

    Attributes:
        settings: of the run.
        model: whose dense part is saved.
        optimizer: of the dense part.
        mode: the trainer's way to the servers.
        steps_before: steps that the run had taken when it was resumed.
    """

    settings: RunSettings
    model: CtrModel
    optimizer: DenseStep
    mode: Mode
    steps_before: int = 0
    _every: Every | None = None
    _saved_s: float = field(default_factory=time.monotonic)
    _saving: pserver.Saving | None = None
    _resumed: dict[str, int] = field(default_factory=dict)  # positions of all trainers, by id

    def __post_init__(self) -> None:
        """Let one trainer save for all; others take part where it has not all of the dense part."""
        given = self.settings.checkpoint_every
        if given is None:
            return
        every, optimizer = every_of(given), self.optimizer
        gathers = isinstance(optimizer, DenseOverRanks | SplitDense) and optimizer.gathers_together
        if self._is_saver or gathers:
            self._every = every
        if gathers and isinstance(optimizer, DenseOverRanks):
            optimizer.saves = every
        if isinstance(self.mode, GroupMode):
            self.mode.is_in_order = True

    @property
    def _is_saver(self) -> bool:
        return (self.settings.trainer_id or 0) == SAVER

    def after_step(self, step: int) -> None:
        """Save if it is time: training goes on as soon as the cut is marked.

        A save that is still being written when the next one is due is waited for.

        Args:
            step: of this process, from 1.

        Raises:
            pserver.CheckpointError: the servers could not save, or did not finish the save before.
        """
        seconds = time.monotonic() - self._saved_s
        if self._every is None or not self._every.is_due(
            step=self.steps_before + step, seconds=seconds
        ):
            return
        if not self._is_saver:
            self._gather()
            return
        self.finish()
        self.mode.flush()
        facts = {
            **_facts(self.settings),
            "steps": self.steps_before + step,
            "steps_before": self.steps_before,
            "first_round": _first_round(self.mode),
            "resumed": self._resumed,
        }
        self._saving = self.mode.client.checkpoints.begin_save(
            trainers={str(SAVER): facts},
            files={_FILE: self._encode()},
            round_number=_next_round(self.mode),
        )
        self._saved_s = time.monotonic()

    def finish(self) -> None:
        """Wait for the save that is under way, if one is.

        Raises:
            pserver.CheckpointError: the servers could not finish it.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.wait()

    def resume(self) -> int:
        """Take up what the servers were restored from, and return the steps that it has.

        Raises:
            pserver.CheckpointError: the servers began empty, no run left its part in the version, or
                another run did: the differences are shown.
        """
        checkpoints = self.mode.client.checkpoints
        restored = checkpoints.restored()
        if restored is None:
            raise pserver.CheckpointError(
                "--resume: the servers began empty; start them with --restore latest"
            )
        facts = restored.trainers.get(str(SAVER))
        if facts is None:
            raise pserver.CheckpointError(
                f"--resume: {restored.version} was not saved by a run: it has no position in the rows"
            )
        self._check_same(facts, version=restored.version)
        self.steps_before = self._position(facts, restored)
        self._decode(checkpoints.read_file(_FILE))
        if isinstance(self.mode, GroupMode):
            self.mode.steps_before = self.steps_before
        return self.steps_before

    def _position(self, facts: Mapping[str, Any], restored: pserver.Restored) -> int:
        """Return the steps of this trainer's rows that a version has."""
        if restored.round and facts["first_round"]:
            return int(facts["steps_before"]) + restored.round - int(facts["first_round"])
        if share_of(self.settings)[1] == 1:
            return int(facts["steps"])
        # A trainer that had pushed nothing yet was where the run before it had been resumed.
        self._resumed = {**facts.get("resumed", {})}
        self._resumed |= {str(who): steps for who, steps in restored.positions.items()}
        return int(self._resumed.get(str(self.settings.trainer_id or 0), 0))

    def _check_same(self, facts: Mapping[str, Any], *, version: str) -> None:
        """Refuse a version of another run."""
        own = _facts(self.settings)
        differences = [
            f"{name}: {facts.get(name)} there, {own[name]} here"
            for name in _SAME
            if facts.get(name) != own[name]
        ]
        if differences:
            raise pserver.CheckpointError(
                f"--resume: {version} is of another run ({'; '.join(differences)})"
            )

    def _encode(self) -> bytes:
        """Return the trainer's part as safetensors."""
        tensors = {"random": torch.get_rng_state()}
        if self.model.precision.scale is not None:
            numbers = self.model.precision.scale.export()
            tensors["loss_scale"] = torch.tensor(numbers, dtype=torch.float64)
        return save(tensors | self._gather())

    def _gather(self) -> dict[str, torch.Tensor]:
        """Return the dense part, with the other trainers where they have some of it; nothing if servers do."""
        if isinstance(self.optimizer, DenseOverRanks | SplitDense):
            return self.optimizer.gather_state()
        if isinstance(self.optimizer, optim.Optimizer):
            return export_dense(self.model.dense, self.optimizer)
        return {}

    def _decode(self, data: bytes) -> None:
        """Take the trainer's part."""
        tensors = load(data)
        random = tensors.pop("random")
        if self._is_saver:  # trainers that draw the same numbers would drop the same units
            torch.set_rng_state(random)
        scale, numbers = self.model.precision.scale, tensors.pop("loss_scale", None)
        if scale is not None and numbers is not None:
            scale.load(numbers.tolist())
        if isinstance(self.optimizer, DenseOverRanks | SplitDense):
            self.optimizer.resume(self.steps_before, tensors)
        elif isinstance(self.optimizer, optim.Optimizer):
            load_dense(self.model.dense, self.optimizer, tensors)


def _facts(settings: RunSettings) -> dict[str, Any]:
    """Return what a resumed run must have in common with the one that saved."""
    return {name: getattr(settings, name) for name in _SAME}


def _next_round(mode: Mode) -> int:
    """Return the round that comes next, and is the first that a save must not have; 0 without rounds."""
    return mode.round if isinstance(mode, SyncMode) else 0


def _first_round(mode: Mode) -> int:
    """Return the round of the first step of this process; 0 without rounds."""
    return mode.group.first_round if isinstance(mode, GroupMode) and mode.in_rounds else 0
