"""Start the ranks of a job on this node by torchrun: a thin layer that knows our names.

Rooms before and after: ``cli.launch`` has the flags; torch's elastic agent starts the ranks, finds the other nodes,
starts all ranks again when one fails, and gives each its number in the environment, which ``aliases``
and ``collective.connect`` read.

What always holds: each rank has a log of its own, and the first one on this node is shown too. When ranks have
failed for good, the first failure is told, with its last words. Ranks do not outlive the process that launched them.
"""

import contextlib
import re
import sys
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pserver
from trainer.errors import TrainerError
from trainer.launch.child import how_ended, last_words
from trainer.launch.leash import on_leash
from trainer.launch.local import servers_here, without_ours

PORT = 29400
"""Of the first node, where several nodes meet, when nothing is said."""

_NNODES = re.compile(r"(\d+)(?::(\d+))?")
_ROLE = "rank"


@dataclass(frozen=True, slots=True)
class Launch:
    """What is started, and where.

    Attributes:
        target: ``job.toml`` of ``trainer run``, or a Python script.
        words: after it.
        nodes_min: nodes that must be there before ranks start.
        nodes_max: nodes at most.
        ranks: of this node.
        ips: of the nodes, the first one the meeting place; empty: this node alone.
        node_ip: of this node, one of them.
        port: of the meeting place; 0 where this node is alone: any.
        max_restarts: how often all ranks start again when one fails.
        devices: CUDA devices of this node, one a rank; None: all ranks see all.
        servers: endpoints that ranks get; empty: what the job says.
        server_num: servers to start here.
        log_dir: of the logs.
        job_id: the same on all nodes of a job.
    """

    target: Path
    words: Sequence[str] = ()
    nodes_min: int = 1
    nodes_max: int = 1
    ranks: int = 1
    ips: Sequence[str] = ()
    node_ip: str = "127.0.0.1"
    port: int = PORT
    max_restarts: int = 0
    devices: str | None = None
    servers: str = ""
    server_num: int = 0
    log_dir: Path = Path("logs")
    job_id: str = "job"

    def __post_init__(self) -> None:
        """Refuse what cannot be started.

        Raises:
            pserver.ConfigError: says what does not fit.
        """
        for holds, text in (
            (
                self.target.suffix in (".toml", ".py"),
                f"takes a job.toml of `trainer run` or a script.py, got {str(self.target)!r}",
            ),
            (self.target.is_file(), f"there is no file {str(self.target)!r}"),
            (
                1 <= self.nodes_min <= self.nodes_max,
                f"nnodes must be N or MIN:MAX, got {self.nodes_min}:{self.nodes_max}",
            ),
            (self.ranks >= 1, f"nproc_per_node must be at least 1, got {self.ranks}"),
            (self.max_restarts >= 0, f"max_restarts must be at least 0, got {self.max_restarts}"),
            (
                self.nodes_max == max(1, len(self.ips)),
                f"nnodes says {self.nodes_max} and cluster_node_ips has {len(self.ips)} addresses",
            ),
            (
                not self.ips or self.node_ip in self.ips,
                f"node_ip must be one of cluster_node_ips {', '.join(self.ips)}, got {self.node_ip!r}",
            ),
            (
                not (self.server_num and self.nodes_max > 1),
                "server_num starts servers that this node alone can reach; with several nodes start "
                "them by `pserver serve`, and give servers",
            ),
            (not (self.server_num and self.servers), "give servers or server_num, not both"),
            (
                self.devices is None or len(self.devices.split(",")) == self.ranks,
                f"devices {self.devices} and nproc_per_node {self.ranks} must be as many",
            ),
        ):
            if not holds:
                raise pserver.ConfigError(text)

    @property
    def is_alone(self) -> bool:
        """Return whether there is no other node."""
        return self.nodes_max == 1


def nodes_of(text: str) -> tuple[int, int]:
    """Return the least and the most nodes of N or MIN:MAX.

    Raises:
        pserver.ConfigError: it is neither.
    """
    match = _NNODES.fullmatch(text)
    if match is None:
        raise pserver.ConfigError(f"nnodes must be N or MIN:MAX, got {text!r}")
    return int(match[1]), int(match[2] or match[1])


def run_ranks(launch: Launch, *, environ: MutableMapping[str, str]) -> None:
    """Run the ranks of this node to their end.

    Args:
        launch: what is started.
        environ: of this process, which ranks inherit; servers and devices are written into it.

    Raises:
        TrainerError: a rank failed for good, a server did not start, or other nodes did not come.
    """
    launch.log_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        servers = launch.servers
        if launch.server_num:
            own = without_ours(environ)
            servers = stack.enter_context(
                servers_here(launch.server_num, launch.log_dir, own, own={})
            )
        if servers:
            environ["PADDLE_PSERVERS_IP_PORT_LIST"] = servers
        if launch.devices is not None:
            environ["CUDA_VISIBLE_DEVICES"] = launch.devices
        environ.setdefault("OMP_NUM_THREADS", "1")
        _run_agent(launch)


def command_of(launch: Launch) -> list[str]:
    """Return what each rank runs."""
    python = [sys.executable, "-u"]
    if launch.target.suffix == ".toml":
        return [*python, "-m", "trainer", "run", "--config", str(launch.target), *launch.words]
    return [*python, str(launch.target), *launch.words]


def _run_agent(launch: Launch) -> None:
    """Be torchrun."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logs = DefaultLogsSpecs(
        log_dir=str(launch.log_dir), redirects=Std.ALL, tee={0: Std.ALL}, local_ranks_filter={0}
    )
    meeting = "127.0.0.1:0" if launch.is_alone else f"{launch.ips[0]}:{launch.port}"
    config = LaunchConfig(
        min_nodes=launch.nodes_min,
        max_nodes=launch.nodes_max,
        nproc_per_node=launch.ranks,
        logs_specs=logs,
        run_id=launch.job_id,
        role=_ROLE,
        rdzv_endpoint=meeting,
        rdzv_backend="c10d",
        rdzv_configs={"is_host": launch.is_alone or launch.node_ip == launch.ips[0]},
        max_restarts=launch.max_restarts,
        local_addr=launch.node_ip,
        virtual_local_rank=launch.devices is not None,
    )
    program, *words = on_leash(command_of(launch))
    try:
        elastic_launch(config=config, entrypoint=program)(*words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        log = _newest_log(launch.log_dir, failure.local_rank)
        how = how_ended(failure.exitcode)
        raise TrainerError(f"rank {rank} {how}: {last_words(log)}; its log is {log}") from error
    except RendezvousError as error:
        raise TrainerError(
            f"the {launch.nodes_max} nodes did not meet at {meeting}: {error}; are all started, with the "
            "same cluster_node_ips and job_id?"
        ) from error
    except SignalException as error:
        raise SystemExit(128 + error.sigval) from error


def _newest_log(folder: Path, local_rank: int) -> Path:
    """Return where a rank's last attempt wrote its errors."""
    logs = folder.glob(f"*/attempt_*/{local_rank}/stderr.log")
    return max(logs, key=lambda path: path.stat().st_mtime)
