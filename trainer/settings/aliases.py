"""Other systems' names for settings of a run: PaddlePaddle's strategy and launcher, and torchrun.

Rooms before and after: ``cli`` hands them to ``pserver.resolve``; ``strategy`` and ``config`` say what
our own names mean. In a TOML file, PaddlePaddle's stand beside ours::

    [run]
    a_sync = true
    a_sync_configs = { k_step = 400, send_queue_size = 32 }

What always holds: an alias sets the setting that does the same here, and nothing else; a name of
theirs with no such setting is refused with what to do. ``a_sync`` alone is async, never geo.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from pserver import ConfigError, Given, nearest, read_paddle
from trainer.settings.aliases_dense import SWITCHES, split_off

CONFIGS: Final = {
    "k_steps": "k_steps",
    "k_step": "k_steps",
    "send_queue_size": "send_queue_size",
    "max_merge_var_num": "max_merge_num",
}
"""Keys of ``a_sync_configs`` and the settings that they are."""

NO_SUCH: Final = {
    "thread_pool_size": "a shard has one thread that applies pushes; start more shards",
    "send_wait_times": "give flush_interval_ms, in ms, with mode half_async",
    "independent_recv_thread": "pulls are always made ahead; give prefetch",
    "min_send_grad_num_before_recv": "give prefetch, or max_staleness",
    "launch_barrier": "trainers always wait for each other at the start; give barrier_timeout",
    "lr_decay_steps": "a schedule is part of the optimizer's text; see `pserver optimizers`",
    "heter_worker_device_guard": "give device",
    "runtime_split_send_recv": "pulls and pushes are always apart",
    "use_ps_gpu": "servers use CPUs only",
}
"""Keys of ``a_sync_configs`` that nothing here is, and what to do instead."""

VARIABLES: Final = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "ps",
    "PADDLE_PSERVER_ENDPOINTS": "ps",
    "PADDLE_TRAINERS_NUM": "trainers",
    "PADDLE_TRAINER_ID": "trainer_id",
}
"""PaddlePaddle's variables and the settings that they are."""

TORCHRUN: Final = {"RANK": "trainer_id", "WORLD_SIZE": "trainers"}
"""torchrun's variables; it sets both."""

AGENT_STORE: Final = "TORCHELASTIC_USE_AGENT_STORE"
"""What torchrun sets to True when it listens there itself."""

MEETING: Final = ("MASTER_ADDR", "MASTER_PORT")
"""torchrun's variables for ``master``; it sets both."""


_KEYS = ("a_sync", "a_sync_configs")
_THEIRS = (*_KEYS, *(f"{name}_configs" for name in SWITCHES))
_TYPO = 0.8  # how alike two names are when one is taken for a misspelling of the other


class RunAliases:
    """What ``trainer run`` understands beside its own names."""

    def from_environment(self, environ: Mapping[str, str]) -> Given:
        """Return the servers, and this trainer's number, as a launcher has set them.

        Raises:
            pserver.ConfigError: the environment is a server's, a name is misspelt, two launchers
                disagree, or one of torchrun's variables is without the other.
        """
        found = read_paddle(environ, role="TRAINER")
        given: Given = {
            field: (found[name], f"environment {name}")
            for name, field in VARIABLES.items()
            if name in found
        }
        ranks = {name: environ[name] for name in TORCHRUN if environ.get(name)}
        if len(ranks) == 1:
            (name,) = ranks
            (other,) = TORCHRUN.keys() - ranks
            raise ConfigError(f"environment {name} is set and {other} is not; set both or neither")
        for name, value in ranks.items():
            field, origin = TORCHRUN[name], f"environment {name}"
            if field in given and given[field][0] != value:
                raise ConfigError(
                    f"{given[field][1]} says {given[field][0]} and {origin} says {value}; "
                    "give one of them"
                )
            given.setdefault(field, (value, origin))
        given.update(_meeting(environ))
        return given

    def from_file(self, values: dict[str, Any], *, where: str) -> tuple[dict[str, Any], Given]:
        """Return the keys of ours, and what PaddlePaddle's say: ``a_sync``, ``a_sync_configs``, those of ``aliases_dense``.

        Raises:
            pserver.ConfigError: a key has no counterpart here, or a value makes no sense.
        """
        ours, of_dense = split_off({k: v for k, v in values.items() if k not in _KEYS}, where)
        for key in ours:
            if close := difflib.get_close_matches(key, _THEIRS, 1, _TYPO):
                raise ConfigError(f"{where}.{key}: no such setting; did you mean {close[0]!r}?")
        configs = values.get("a_sync_configs", {})
        if "a_sync" not in values:
            if "a_sync_configs" in values:
                raise ConfigError(f"{where}.a_sync_configs needs a_sync, true or false")
            return ours, of_dense
        a_sync = values["a_sync"]
        if not isinstance(a_sync, bool) or not isinstance(configs, dict):
            raise ConfigError(
                f"{where}: a_sync must be true or false, and a_sync_configs a table, got "
                f"{a_sync!r} and {configs!r}"
            )
        return ours, {**of_dense, **_strategy(configs, where, is_async=a_sync)}


def _meeting(environ: Mapping[str, str]) -> Given:
    """Return where torchrun lets the trainers meet, and whether it listens there itself.

    Raises:
        pserver.ConfigError: one of its variables is without the other.
    """
    place = {name: environ[name] for name in MEETING if environ.get(name)}
    if not place:
        return {}
    if len(place) == 1:
        (name,) = place
        (other,) = set(MEETING) - place.keys()
        raise ConfigError(f"environment {name} is set and {other} is not; set both or neither")
    origin = "environment MASTER_ADDR and MASTER_PORT"
    given: Given = {"master": (":".join(place[name] for name in MEETING), origin)}
    if environ.get(AGENT_STORE) == "True":
        given["master_store"] = ("launcher", f"environment {AGENT_STORE}")
    return given


def _strategy(configs: dict[str, Any], where: str, *, is_async: bool) -> Given:
    """Return the mode and its knobs; by PaddlePaddle's own rule, but for its choice of geo.

    Source:
        python/paddle/distributed/ps/utils/public.py of PaddlePaddle: not a_sync is sync; a_sync
        with k_steps > 0 geo, with 0 async. With -1, its default, it picks one by the optimizer
        and the free memory, which is refused here when written and not done when not.
    """
    given = _knobs(configs, where)
    steps, origin = given.pop("k_steps", (0, ""))
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
        raise ConfigError(
            f"{origin}: must be 0 for async or the batches between two exchanges for geo, got "
            f"{steps!r}; no mode is chosen for you"
        )
    mode = "sync" if not is_async else "geo" if steps else "async"
    if steps:
        given["k_steps"] = (steps, origin)  # sync refuses it
    given["mode"] = (mode, f"alias {where}.a_sync")
    if "max_merge_num" in given and mode == "async":
        given["on_full"] = ("merge", given["max_merge_num"][1])
    return given


def _knobs(configs: dict[str, Any], where: str) -> Given:
    """Return what ``a_sync_configs`` says, by our names."""
    given: Given = {}
    for name, value in configs.items():
        origin = f"alias {where}.a_sync_configs.{name}"
        if name in NO_SUCH:
            raise ConfigError(f"{origin}: has no effect here: {NO_SUCH[name]}")
        if name not in CONFIGS:
            raise ConfigError(f"{origin}: unknown name; {nearest(name, CONFIGS)}")
        field = CONFIGS[name]
        if field in given and given[field][0] != value:
            raise ConfigError(
                f"{given[field][1]} says {given[field][0]} and {origin} says {value}; give one"
            )
        given.setdefault(field, (value, origin))
    return given
