"""The command ``trainer launch``: start the ranks of a job or of a script on this node and others, or a job on Ray.

Rooms before and after: ``cli`` adds it; ``launch.ranks`` does it, or ``cli.launch_ray``. The names of PaddlePaddle's launcher and
torchrun's (with underscores) are understood as flags.

What always holds: two names for one thing that say different things are refused, and so is a flag that only the
other launcher reads.
"""

import argparse
import functools
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pserver

_PORT = 29400
"""As in ``launch.ranks``, which is loaded late; a test compares them."""

_OF_TORCHRUN = (
    *("nnodes", "nproc_per_node", "node_ip", "cluster_node_ips", "port", "devices", "servers"),
    "server_num",
)
_OF_RAY = ("shards", "ray_address", "journal", "server_cpus", "trainer_cpus", "trainer_gpus")
_RESTARTS_HELP = (
    "of all ranks (default: 0); on Ray of each server (default: 10 with --journal, else 0)"
)


def add_launch_command(commands: Any, *, environ: MutableMapping[str, str]) -> None:
    """Add ``launch`` to a command's subparsers. What it starts gets the environment."""
    launching = commands.add_parser(
        "launch", help="start the ranks of a job.toml or script.py by torchrun, or a job on Ray"
    )
    add = launching.add_argument
    add("--on", choices=("torchrun", "ray"), default="torchrun", help="(default: torchrun)")
    add("--max-restarts", "--max_restarts", type=int, help=_RESTARTS_HELP)
    add("--log-dir", "--log_dir", type=Path, help="(default: logs)")
    add("--job-id", "--job_id", help="the same on all nodes (default: job; on Ray one of its own)")
    add(
        "--trainers",
        metavar="IP:PORT,...|N",
        help="PaddlePaddle's: all ranks by address; gives cluster_node_ips and nproc_per_node. On Ray: "
        "how many",
    )
    _add_torchrun_flags(launching.add_argument_group("on torchrun"))
    _add_ray_flags(launching.add_argument_group("on Ray"))
    add("target", type=Path, metavar="job.toml|script.py", help="what each rank runs")
    add("words", nargs=argparse.REMAINDER, metavar="...", help="what it gets")
    launching.set_defaults(run=functools.partial(_launch, environ=environ))


def _add_torchrun_flags(group: Any) -> None:
    add = group.add_argument
    add("--nnodes", help="nodes, N or MIN:MAX (default: as many as cluster_node_ips)")
    add(
        "--nproc-per-node",
        "--nproc_per_node",
        "--worker_num",
        "--trainer_num",
        type=int,
        help="ranks of this node (default: one, or one for each of --devices)",
    )
    add("--node-ip", "--node_ip", help="address of this node, one of cluster_node_ips")
    add(
        "--cluster-node-ips",
        "--cluster_node_ips",
        metavar="IP,...",
        help="addresses of all nodes; they meet at the first",
    )
    add("--port", type=int, help=f"of the meeting place (default: {_PORT})")
    add("--devices", "--gpus", metavar="0,1,...", help="CUDA devices of this node, one a rank")
    add("--servers", metavar="HOST:PORT,...", help="servers that the ranks get")
    add("--server-num", "--server_num", type=int, help="servers to start here (default: 0)")


def _add_ray_flags(group: Any) -> None:
    add = group.add_argument
    add("--shards", type=int, help="servers (default: 1)")
    add("--ray-address", metavar="HOST:PORT", help="of the cluster; none: one for this job, here")
    add(
        "--journal",
        type=Path,
        metavar="DIR",
        help="of the servers' journals, which all machines share: a lost server comes back elsewhere",
    )
    add("--server-cpus", type=float, metavar="N", help="of a server (default: 1)")
    add("--trainer-cpus", type=float, metavar="N", help="of a trainer (default: 1)")
    add("--trainer-gpus", type=float, metavar="N", help="of a trainer (default: 0)")


def _launch(given: argparse.Namespace, *, environ: MutableMapping[str, str]) -> None:
    others = _OF_RAY if given.on == "torchrun" else _OF_TORCHRUN
    for name in others:
        if getattr(given, name) is not None:
            where = "ray" if given.on == "torchrun" else "torchrun"
            raise pserver.ConfigError(f"{name} is for --on {where}, and this is --on {given.on}")
    if given.on == "ray":
        from trainer.cli.launch_ray import launch_on_ray_of

        launch_on_ray_of(given, environ=environ)
    else:
        _launch_by_torchrun(given, environ)


def _launch_by_torchrun(given: argparse.Namespace, environ: MutableMapping[str, str]) -> None:
    from trainer.launch.ranks import Launch, nodes_of, run_ranks

    ips = given.cluster_node_ips.split(",") if given.cluster_node_ips else []
    ranks = given.nproc_per_node
    if given.trainers:
        if given.trainers.isdecimal():
            raise pserver.ConfigError(
                f"trainers takes IP:PORT,... of all ranks, got {given.trainers}; nproc_per_node is how many "
                "this node has, and with --on ray trainers is how many there are"
            )
        places = [place.rpartition(":")[0] or place for place in given.trainers.split(",")]
        own_ips = list(dict.fromkeys(places))
        counts = {places.count(ip) for ip in own_ips}
        if len(counts) > 1:
            raise pserver.ConfigError(
                f"trainers {given.trainers} must have as many ranks on each node"
            )
        ips = _agreed("trainers", own_ips, "cluster_node_ips", ips)
        ranks = _agreed("trainers", counts.pop(), "nproc_per_node", ranks)
    if given.devices:
        ranks = _agreed("devices", len(given.devices.split(",")), "nproc_per_node", ranks)
    if len(ips) > 1 and given.node_ip is None:
        raise pserver.ConfigError(f"give node_ip, one of {', '.join(ips)}")
    least, most = nodes_of(given.nnodes or str(max(1, len(ips))))
    launch = Launch(
        target=given.target,
        words=given.words,
        nodes_min=least,
        nodes_max=most,
        ranks=1 if ranks is None else ranks,
        ips=ips,
        node_ip=given.node_ip or (ips[0] if ips else "127.0.0.1"),
        port=_PORT if given.port is None else given.port,
        max_restarts=given.max_restarts or 0,
        devices=given.devices,
        servers=given.servers or "",
        server_num=given.server_num or 0,
        log_dir=given.log_dir or Path("logs"),
        job_id=given.job_id or "job",
    )
    run_ranks(launch, environ=environ)


def _agreed(name: str, value: Any, other: str, said: Any) -> Any:
    """Return what two flags say, if they do not contradict each other."""
    if said and said != value:
        raise pserver.ConfigError(f"{name} says {value} and {other} says {said}; give one of them")
    return value
