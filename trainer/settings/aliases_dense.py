"""PaddlePaddle's names for how the dense part computes: sharding, recompute and half floats.

Rooms before and after: ``aliases`` hands over the keys of a TOML section; ``computing`` says what our names mean::

    [run]
    dense = "allreduce"
    sharding = true
    sharding_configs = { stage = 2, sharding_degree = 8 }
    amp = true
    amp_configs = { init_loss_scaling = 32768.0, custom_black_list = [] }

What always holds: as of ``aliases``. A ``..._configs`` without its switch is refused; with the switch off its values are
looked at and not used. ``amp = true`` is fp16; our own ``amp = "bf16"`` and ``recompute = "mlp"`` are text, so that
nobody has to know which of both is meant.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from pserver import ConfigError, Given, nearest

SWITCHES: Final = ("sharding", "recompute", "amp")
"""Each with a table of its name and ``_configs``."""

CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    "sharding": {
        "stage": "sharding_stage",
        "sharding_degree": "sharding_degree",
        "offload": "offload",
        "optimize_offload": "offload",
    },
    "recompute": {"checkpoints": "recompute"},
    "amp": {
        "init_loss_scaling": "amp_scale",
        "incr_every_n_steps": "amp_grow_every",
        "incr_ratio": "amp_grow_by",
        "decr_every_n_nan_or_inf": "amp_shrink_after",
        "decr_ratio": "amp_shrink_by",
        "dtype": "amp",
        "use_dynamic_loss_scaling": "amp_grow_every",
    },
}
"""Keys of the tables and the settings that they are."""

ONLY: Final[Mapping[str, object]] = {
    "dp_degree": 1,
    "mp_degree": 1,
    "pp_degree": 1,
    "gradient_merge_acc_step": 1,
    "enable_offload": False,
    "custom_white_list": [],
    "custom_black_list": [],
    "custom_black_varnames": [],
    "use_pure_fp16": False,
    "use_pure_bf16": False,
    "use_fp16_guard": False,
    "use_optimizer_fp16": False,
    "checkpoint_shape": [],
    "segment_anchors": [],
}
"""Keys of which one value is what is done here anyway."""

NO_SUCH: Final = {
    "dp_degree": "copies follow from trainers and sharding_degree",
    "mp_degree": "a layer is not split; give stages",
    "pp_degree": "give stages",
    "gradient_merge_acc_step": "give accumulate, without sharding",
    "enable_offload": "what is computed again is not kept at all",
    "custom_white_list": "torch's autocast chooses",
    "custom_black_list": "torch's autocast chooses",
    "custom_black_varnames": "torch's autocast chooses",
    "use_pure_fp16": "weights stay float32",
    "use_pure_bf16": "weights stay float32",
    "use_fp16_guard": "the whole dense part computes in half floats",
    "use_optimizer_fp16": "optimizer state stays float32",
    "checkpoint_shape": "shapes are not needed",
    "segment_anchors": "chunks are of one size",
    "sharding_segment_strategy": "chunks are of one size",
    "segment_broadcast_MB": "a chunk is gathered at once",
    "hybrid_dp": "copies follow from trainers and sharding_degree",
}
"""Keys that nothing here is, and what to do instead."""

_KINDS = {"float16": "fp16", "bfloat16": "bf16"}


def split_off(values: Mapping[str, Any], where: str) -> tuple[dict[str, Any], Given]:
    """Return the keys of a section that are not PaddlePaddle's of this kind, and what those say.

    Args:
        values: the section.
        where: what errors call it.

    Raises:
        ConfigError: a key has no counterpart here, or a value makes no sense.
    """
    theirs = {f"{name}_configs" for name in SWITCHES}
    theirs |= {name for name in SWITCHES if isinstance(values.get(name), bool)}
    theirs |= {"sharding"}
    given: Given = {}
    for name in SWITCHES:
        if f"{name}_configs" in values or (name in theirs and name in values):
            given.update(_told(name, values, where))
    return {key: value for key, value in values.items() if key not in theirs}, given


def _told(name: str, values: Mapping[str, Any], where: str) -> Given:
    """Return what a switch and its table say."""
    is_on, configs = values.get(name), values.get(f"{name}_configs", {})
    if not isinstance(is_on, bool) or not isinstance(configs, dict):
        raise ConfigError(
            f"{where}: {name} must be true or false, with {name}_configs a table, got {is_on!r} and "
            f"{configs!r}"
        )
    given = _settings(name, configs, where)
    origin = f"alias {where}.{name}"
    if not is_on:
        return {"amp": ("off", origin)} if name == "amp" else {}
    if name == "recompute" and "recompute" not in given:
        raise ConfigError(f"{origin}: recompute_configs must have checkpoints, names of layers")
    if name == "sharding":
        given.setdefault("sharding_stage", (1, origin))
    if name == "amp":
        given.setdefault("amp", ("fp16", origin))
    return given


def _settings(name: str, configs: Mapping[str, Any], where: str) -> Given:
    """Return what a table says, by our names."""
    given: Given = {}
    for key, value in configs.items():
        origin = f"alias {where}.{name}_configs.{key}"
        if key in NO_SUCH:
            if key not in ONLY or value != ONLY[key]:
                raise ConfigError(f"{origin}: has no effect here: {NO_SUCH[key]}")
            continue
        known = CONFIGS[name]
        if key not in known:
            raise ConfigError(f"{origin}: unknown name; {nearest(key, known)}")
        ours = _VALUES[key](value, origin) if key in _VALUES else value
        if ours is None:
            continue
        field = known[key]
        if field in given and given[field][0] != ours:
            raise ConfigError(
                f"{given[field][1]} says {given[field][0]} and {origin} says {ours}; give one"
            )
        given.setdefault(field, (ours, origin))
    return given


def _names(value: object, origin: str) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(n, str) for n in value):
        raise ConfigError(f"{origin}: must be a list of names of layers, got {value!r}")
    return ",".join(value)


def _kind(value: object, origin: str) -> str:
    if value not in _KINDS:
        raise ConfigError(f"{origin}: must be float16 or bfloat16, got {value!r}")
    return _KINDS[str(value)]


def _dynamic(value: object, origin: str) -> int | None:
    """Return 0 if the scale never changes; None: other keys say when it does."""
    if not isinstance(value, bool):
        raise ConfigError(f"{origin}: must be true or false, got {value!r}")
    return None if value else 0


_VALUES: Final[Mapping[str, Callable[[Any, str], Any]]] = {
    "checkpoints": _names,
    "dtype": _kind,
    "use_dynamic_loss_scaling": _dynamic,
}
"""Keys of which the value is another one here."""
