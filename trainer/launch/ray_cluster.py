"""Start the servers and trainers of a job on a Ray cluster, and show them as one: ``trainer launch --on ray``.

Rooms before and after: ``cli.launch_ray`` has the flags; Ray finds room for the processes and puts a server whose
machine is gone on another one; ``launch.ray_remote`` asks them, ``launch.follow`` shows them.

What always holds:
    * All processes have room before one starts, or none does: a placement group.
    * Trainers know servers by files that the crew keeps true, so a server may come back anywhere.
    * A server is started again where it brings back what it held (a journal), or where trainers go on without
      (``on_restart``); else the first one that is lost ends the job.
    * Nothing that was started here is left in the cluster when this returns or raises.
"""

import contextlib
import logging
import math
import queue
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import structlog
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainer.config import RunSettings
from trainer.errors import TrainerError
from trainer.job.summary import Summary
from trainer.launch.child import Events
from trainer.launch.cores import usable_cores
from trainer.launch.local import follow, given_flag, meets, trainer_flags
from trainer.launch.ray_host import Host, Order
from trainer.launch.ray_job import RayJob, servers_of, shard_file
from trainer.launch.ray_remote import Crew, Remote

log = structlog.get_logger(__name__)

_JOB = "job.toml"
_KINDS = ("CPU", "GPU")
_ROOM_S = 300.0  # for the cluster to have room, which may take new machines
_TELL_EVERY_S = 10.0
_HERE = "127.0.0.2"
"""Of the machine in a Ray of our own, so that servers need neither TLS nor tokens. Ray takes 127.0.0.1, and only that, for
whatever address others know the machine by."""

_OBJECT_BYTES = 80 << 20
"""Of the object store of such a Ray: we keep nothing there, and Ray takes no less than 75 MiB."""


def launch_on_ray(job: RayJob, settings: RunSettings, *, folder: Path, restarts: int) -> Summary:
    """Run a job on a Ray cluster to its end and return the figures of its trainers as one.

    Args:
        job: what is started.
        settings: of its trainers, whose ``ps`` is ``servers_of(folder, job.shards)``.
        folder: for files of the job, here and on every machine; made now.
        restarts: of each server, if need be.

    Raises:
        pserver.ConfigError: settings cannot work, here or where a process was put.
        TrainerError: there is no cluster or no room, or a trainer or a server failed; all have ended.
    """
    job.log_dir.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    events: Events = queue.Queue()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_cluster(job, settings))
        room = stack.enter_context(_room(job, settings))
        place = _Place(room, folder, job.log_dir)
        servers = _servers(job, settings, place, restarts)
        trainers = _trainers(job, settings, place)
        files = {_JOB: job.target.read_text(encoding="utf-8")}
        crew = Crew(servers, trainers, events, folder=folder, files=files)
        stack.callback(crew.end)
        return follow(settings, trainers, events)


@contextlib.contextmanager
def _cluster(job: RayJob, settings: RunSettings) -> Iterator[None]:
    """Be connected to the cluster, or to one of our own."""
    own: dict[str, Any] = {}
    if job.address is None:
        needed = sum(bundle.get("CPU", 0.0) for bundle in _bundles(job, settings))
        own = {
            "num_cpus": max(usable_cores(), math.ceil(needed)),
            "include_dashboard": False,
            "_node_ip_address": _HERE,
            "object_store_memory": _OBJECT_BYTES,
            "_system_config": {"worker_niceness": 0},  # 15 else, as for work in the background
        }
    before = signal.getsignal(
        signal.SIGTERM
    )  # Ray takes it, and would end us without our last words
    try:
        ray.init(
            address=job.address or "local",
            namespace=job.job_id,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **own,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        where = job.address or "this machine"
        raise TrainerError(f"cannot use a Ray cluster at {where}: {error}") from error
    signal.signal(signal.SIGTERM, before)
    try:
        yield
    finally:
        ray.shutdown()


def _bundles(job: RayJob, settings: RunSettings) -> list[dict[str, float]]:
    """Return what each process asks for: servers first, in the order of shards."""
    server = {"CPU": job.server_cpus}
    trainer = {"CPU": job.trainer_cpus, "GPU": job.trainer_gpus}
    bundles = [server] * job.shards + [trainer] * settings.trainers
    return [{name: much for name, much in one.items() if much} for one in bundles]


@contextlib.contextmanager
def _room(job: RayJob, settings: RunSettings) -> Iterator[PlacementGroup]:
    """Have room for all processes, spread over the machines."""
    bundles = _bundles(job, settings)
    room = placement_group(bundles, strategy="SPREAD")
    try:
        begun_s = time.monotonic()
        while not room.wait(_TELL_EVERY_S):
            wanted, has = (
                ", ".join(f"{name} {sum(one.get(name, 0.0) for one in of):g}" for name in _KINDS)
                for of in (bundles, [ray.cluster_resources()])
            )
            waited_s = time.monotonic() - begun_s
            if waited_s > _ROOM_S:
                raise TrainerError(
                    f"the Ray cluster had no room within {_ROOM_S:.0f} s: the job takes {wanted}, and there "
                    f"is {has} in all"
                )
            log.warning("waits for room", wanted=wanted, cluster=has, seconds=round(waited_s))
        yield room
    finally:
        if job.address is not None:  # ours ends with us, and may have been told to end as we were
            remove_placement_group(room)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the processes of a job go.

    Attributes:
        room: in the cluster.
        folder: of the job, on every machine.
        logs: folder here.
    """

    room: PlacementGroup
    folder: Path
    logs: Path

    def own(self, name: str) -> Path:
        """Return the folder of one process."""
        return self.folder / name

    def actor(self, name: str, bundle: int, module: str, **options: Any) -> Any:
        """Make the actor of one process in its part of the room."""
        order = Order(
            name=name.replace("-", " "),
            module=module,
            listens=module == "pserver",
            cwd=str(Path.cwd()),
            folder=str(self.own(name)),
        )
        within = PlacementGroupSchedulingStrategy(self.room, bundle)
        made = ray.remote(Host).options(name=name, scheduling_strategy=within, **options)
        try:
            return made.remote(order)
        except ValueError as error:  # the name is taken
            raise TrainerError(f"{error}; does a job with this job_id run already?") from error

    def remote(self, name: str, actor: Any, words: Sequence[str]) -> Remote:
        """Return one process as it is seen here."""
        kind, _, number = name.partition("-")
        log_file = self.logs / f"{name}.log"
        return Remote(f"{kind} {number}", int(number), actor, words=words, log=log_file)


def _servers(job: RayJob, settings: RunSettings, place: _Place, restarts: int) -> list[Remote]:
    """Make the actors of the servers."""
    made: list[Remote] = []
    for shard in range(job.shards):
        name = f"server-{shard}"
        own: dict[str, object] = {"config": place.own(name) / _JOB, "shard": shard}
        own |= {"shards": job.shards, "drain_s": 0.0}
        own |= {"rule": settings.rule, "log_format": settings.log_format}
        if job.journal is not None:
            own["journal"] = job.journal / shard_file(shard)
        words = ["serve", *(flag for key, value in own.items() if (flag := given_flag(key, value)))]
        actor = place.actor(name, shard, "pserver", num_cpus=job.server_cpus, max_restarts=restarts)
        server = place.remote(name, actor, words)
        server.restarts_left = restarts
        server.again = () if job.journal is None else ("--restore=latest",)
        made.append(server)
    return made


def _trainers(job: RayJob, settings: RunSettings, place: _Place) -> list[Remote]:
    """Make the actors of the trainers; they meet on the machine of trainer 0, if they do."""
    threads = settings.threads or max(1, int(job.trainer_cpus))
    told = settings.model_copy(update={"threads": threads})
    names = [f"trainer-{number}" for number in range(settings.trainers)]
    cost = {"num_cpus": job.trainer_cpus, "num_gpus": job.trainer_gpus}
    actors = [
        place.actor(name, job.shards + number, "trainer", **cost)
        for number, name in enumerate(names)
    ]
    master = settings.master or ""
    if meets(settings) and not master:
        master = ray.get(actors[0].free_place.remote())
    return [
        place.remote(
            name,
            actor,
            [
                "run",
                *trainer_flags(
                    told, number, ps=servers_of(place.own(name), job.shards), master=master
                ),
            ],
        )
        for number, (name, actor) in enumerate(zip(names, actors, strict=True))
    ]
