"""What a job on Ray is: how much of what, and how often a server is started again.

Rooms before and after: ``cli.launch_ray`` makes it of flags; ``launch.ray_cluster`` starts it. Ray is not imported, so what
cannot work is refused where there is none.
"""

from dataclasses import dataclass
from pathlib import Path

import pserver
from trainer.config import RunSettings

RESTARTS = 10
"""How often a server is started again when nothing is said, where that can help."""


@dataclass(frozen=True, slots=True)
class RayJob:
    """What is started.

    Attributes:
        target: ``job.toml`` of ``trainer run``; its table [serve] is for the servers.
        shards: servers.
        address: of the cluster; None: one of its own on this machine, as long as the job takes.
        journal: folder of the servers' journals, one that all machines share; None: no journals.
        server_cpus: that a server asks Ray for.
        trainer_cpus, trainer_gpus: that a trainer does.
        max_restarts: of each server; None: 10 where it can bring something back or trainers go on without.
        job_id: Ray's namespace, in which the processes have their names.
        log_dir: of the logs of all processes, here.
    """

    target: Path
    job_id: str
    log_dir: Path
    shards: int = 1
    address: str | None = None
    journal: Path | None = None
    server_cpus: float = 1.0
    trainer_cpus: float = 1.0
    trainer_gpus: float = 0.0
    max_restarts: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be started.

        Raises:
            pserver.ConfigError: says what does not fit.
        """
        for holds, text in (
            (self.target.suffix == ".toml", f"--on ray takes a job.toml, got {str(self.target)!r}"),
            (self.target.is_file(), f"there is no file {str(self.target)!r}"),
            (1 <= self.shards <= 1024, f"shards must be in [1, 1024], got {self.shards}"),
            (
                min(self.server_cpus, self.trainer_cpus, self.trainer_gpus) >= 0,
                "server_cpus, trainer_cpus and trainer_gpus must be at least 0",
            ),
            (
                self.max_restarts is None or self.max_restarts >= 0,
                f"max_restarts must be at least 0, got {self.max_restarts}",
            ),
        ):
            if not holds:
                raise pserver.ConfigError(text)

    def restarts(self, settings: RunSettings) -> int:
        """Return how often a server is started again.

        Raises:
            pserver.ConfigError: it would bring back nothing, and trainers would not go on.
        """
        helps = self.journal is not None or settings.on_restart == "go_on"
        if self.max_restarts and not helps:
            raise pserver.ConfigError(
                "max_restarts has no effect without journal: a server would come back empty, and trainers "
                "would refuse it; give journal, or on_restart go_on"
            )
        chosen = RESTARTS if self.max_restarts is None else self.max_restarts
        return chosen if helps else 0


def servers_of(folder: Path, shards: int) -> str:
    """Return the servers as clients are told them: files of a folder that say where each is."""
    return ",".join(f"file:{folder / shard_file(shard)}" for shard in range(shards))


def shard_file(shard: int) -> str:
    """Return the name of the file that holds where a shard is."""
    return f"shard-{shard}"
