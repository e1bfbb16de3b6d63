"""The command ``trainer launch``: start the ranks of a job or of a script on this node, and on others.

Rooms before and after: ``cli`` adds it; ``launch_ranks`` does it. The names of PaddlePaddle's launcher and
torchrun's (with underscores) are understood as flags.

What always holds: two names for one thing that say different things are refused.
"""

import argparse
import functools
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pserver

_PORT = 29400
"""As in ``launch_ranks``, which is loaded late; a test compares them."""


def add_launch_command(commands: Any, *, environ: MutableMapping[str, str]) -> None:
    """Add ``launch`` to a command's subparsers. What it starts gets the environment."""
    launching = commands.add_parser(
        "launch", help="start the ranks of a job.toml or script.py by torchrun"
    )
    add = launching.add_argument
    add("--nnodes", help="nodes, N or MIN:MAX (default: as many as cluster_node_ips)")
    add(
        "--nproc-per-node",
        "--nproc_per_node",
        "--worker_num",
        "--trainer_num",
        type=int,
        dest="ranks",
        help="ranks of this node (default: one, or one for each of --devices)",
    )
    add("--node-ip", "--node_ip", help="address of this node, one of cluster_node_ips")
    add(
        "--cluster-node-ips",
        "--cluster_node_ips",
        dest="ips",
        metavar="IP,...",
        help="addresses of all nodes; they meet at the first",
    )
    add(
        "--trainers",
        metavar="IP:PORT,...",
        help="PaddlePaddle's: all ranks by address; gives cluster_node_ips and nproc_per_node",
    )
    add("--port", type=int, default=_PORT, help=f"of the meeting place (default: {_PORT})")
    add("--max-restarts", "--max_restarts", type=int, default=0, help="of all ranks (default: 0)")
    add("--devices", "--gpus", metavar="0,1,...", help="CUDA devices of this node, one a rank")
    add("--servers", metavar="HOST:PORT,...", help="servers that the ranks get")
    add(
        "--server-num",
        "--server_num",
        type=int,
        default=0,
        help="servers to start here (default: 0)",
    )
    add("--log-dir", "--log_dir", type=Path, default=Path("logs"), help="(default: logs)")
    add("--job-id", "--job_id", default="job", help="the same on all nodes (default: job)")
    add("target", type=Path, metavar="job.toml|script.py", help="what each rank runs")
    add("words", nargs=argparse.REMAINDER, metavar="...", help="what it gets")
    launching.set_defaults(run=functools.partial(_launch, environ=environ))


def _launch(given: argparse.Namespace, *, environ: MutableMapping[str, str]) -> None:
    from trainer.launch_ranks import Launch, nodes_of, run_ranks

    ips = given.ips.split(",") if given.ips else []
    ranks = given.ranks
    if given.trainers:
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
        port=given.port,
        max_restarts=given.max_restarts,
        devices=given.devices,
        servers=given.servers or "",
        server_num=given.server_num,
        log_dir=given.log_dir,
        job_id=given.job_id,
    )
    run_ranks(launch, environ=environ)


def _agreed(name: str, value: Any, other: str, said: Any) -> Any:
    """Return what two flags say, if they do not contradict each other."""
    if said and said != value:
        raise pserver.ConfigError(f"{name} says {value} and {other} says {said}; give one of them")
    return value
