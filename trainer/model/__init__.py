"""The built-in models by name, and a user's own by its place (``own``).

Rooms before and after: ``trainer.cli.main`` asks for a model by its name; ``trainer.loop`` calls it with
the rows that ``trainer.embedding`` pulled. One file a model, ``parts`` for what they share.

What always holds:
    * ``model(rows, dense)`` takes rows (B, F, D) and dense (B, num_dense), and returns logits (B,).
    * The first float of a row is the linear weight, the remaining D - 1 are factors.
    * An argument that a model has no use for is refused, not dropped.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from torch import nn

from trainer.errors import TrainerError
from trainer.model.deepfm import DeepFM
from trainer.model.fm import FactorizationMachine
from trainer.model.lr import LogisticRegression
from trainer.model.own import DEFAULT_DIM, make_own_model, own_class
from trainer.model.wide_deep import WideDeep
from trainer.settings.model_name import own_place

__all__ = ["DEFAULT_HIDDEN", "MODELS", "ModelEntry", "default_dim", "make_model"]

DEFAULT_HIDDEN: Final = (128, 64)
"""Sizes of the hidden layers of models that have some."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """What the registry knows of one model. Immutable.

    Attributes:
        name: as it stands in a job's file.
        constructor: called with num_slots, num_dense, dim, seed and, if it has them, hidden.
        min_dim: the smallest D that makes sense.
        max_dim: the largest; None where more factors are more model.
        default_dim: D when nothing is said.
        has_hidden: whether there are hidden layers to size.
        formula: one line for the list of models.
    """

    name: str
    constructor: Callable[..., nn.Module]
    min_dim: int
    max_dim: int | None
    default_dim: int
    has_hidden: bool
    formula: str


MODELS: Final[dict[str, ModelEntry]] = {
    entry.name: entry
    for entry in (
        ModelEntry(
            name="lr",
            constructor=LogisticRegression,
            min_dim=1,
            max_dim=1,
            default_dim=1,
            has_hidden=False,
            formula="bias + sum_i w_i + a . dense",
        ),
        ModelEntry(
            name="fm",
            constructor=FactorizationMachine,
            min_dim=2,
            max_dim=None,
            default_dim=16,
            has_hidden=False,
            formula="lr + sum_{i<j} <v_i, v_j>",
        ),
        ModelEntry(
            name="wide_deep",
            constructor=WideDeep,
            min_dim=2,
            max_dim=None,
            default_dim=16,
            has_hidden=True,
            formula="lr + mlp(v_1 .. v_F, dense)",
        ),
        ModelEntry(
            name="deepfm",
            constructor=DeepFM,
            min_dim=2,
            max_dim=None,
            default_dim=16,
            has_hidden=True,
            formula="fm + mlp(v_1 .. v_F, dense)",
        ),
    )
}
"""All built-in models, the simplest first."""


def default_dim(name: str) -> int:
    """Return D of a model when nothing is said.

    Args:
        name: of ``MODELS``, or ``FILE.py:CLASS`` or ``MODULE:CLASS``.

    Raises:
        TrainerError: a user's class is not there.
    """
    if own_place(name) is None:
        return MODELS[name].default_dim
    return int(getattr(own_class(name), "default_dim", DEFAULT_DIM))


def make_model(
    name: str,
    *,
    num_slots: int,
    num_dense: int,
    dim: int | None = None,
    hidden: Sequence[int] | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a new model with deterministic initial weights.

    Args:
        name: one of ``MODELS``, or ``FILE.py:CLASS`` or ``MODULE:CLASS`` of a user's own.
        num_slots: F, at least 1.
        num_dense: dense features a sample, 0 or more.
        dim: D, the floats of a row that a model sees. None: the model's default.
        hidden: sizes of the hidden layers. None: ``DEFAULT_HIDDEN``, if the model has some.
        seed: of the initial weights. torch's global generator is neither read nor moved.

    Raises:
        TrainerError: the name is unknown (the message has the nearest), the dim is out of the
            model's range, ``hidden`` is given to a model without hidden layers, or a user's class is
            not what it must be.

    >>> make_model("fm", num_slots=26, num_dense=13, dim=9).linear.affine.weight.shape
    torch.Size([1, 13])
    """
    if own_place(name) is not None and hidden is None:
        dim = default_dim(name) if dim is None else dim
        return make_own_model(name, num_slots=num_slots, num_dense=num_dense, dim=dim, seed=seed)
    entry = MODELS.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.0)[0]
        raise TrainerError(
            f"model must be one of {', '.join(MODELS)}, got {name!r}; did you mean {near!r}?"
        )
    if num_slots < 1 or num_dense < 0:
        raise TrainerError(
            f"model {name}: num_slots must be at least 1 and num_dense at least 0, "
            f"got num_slots {num_slots}, num_dense {num_dense}"
        )
    chosen_dim = entry.default_dim if dim is None else dim
    if chosen_dim < entry.min_dim or (entry.max_dim is not None and chosen_dim > entry.max_dim):
        limit = "" if entry.max_dim is None else f" and at most {entry.max_dim}"
        raise TrainerError(
            f"model {name}: dim must be at least {entry.min_dim}{limit}, got {chosen_dim}"
        )
    if not entry.has_hidden:
        if hidden is not None:
            raise TrainerError(f"model {name}: has no hidden layers, got hidden {tuple(hidden)}")
        return entry.constructor(
            num_slots=num_slots, num_dense=num_dense, dim=chosen_dim, seed=seed
        )
    return entry.constructor(
        num_slots=num_slots,
        num_dense=num_dense,
        dim=chosen_dim,
        hidden=DEFAULT_HIDDEN if hidden is None else tuple(hidden),
        seed=seed,
    )
