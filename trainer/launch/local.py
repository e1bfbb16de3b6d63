"""Start all trainers of a job on this machine, and its servers if none are given; show them as one.

Rooms before and after: ``cli`` calls ``launch`` for ``trainer run --trainers N``; each trainer is a process of
``trainer run --trainer-id I`` with the same settings, whose progress and summary come back as JSON.

What always holds:
    * Trainers get their settings as flags, and none from the environment or a file a second time.
    * The first trainer that fails is told, with its last words and its log; then the others are ended.
      They go on if ``on_missing`` says so, in sync, and elsewhere if it was killed: then nobody waits for
      it. The summary warns of it, and of what was lost.
    * No process that was started here is left when ``launch`` returns or raises; ``cli`` has SIGTERM and an
      interrupt raise. None is left either if this process is killed.
"""

import contextlib
import dataclasses
import json
import queue
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pserver
from trainer.config import RunSettings
from trainer.errors import TrainerError
from trainer.job.lost import settled
from trainer.job.progress import ManyView
from trainer.job.summary import Summary, merged_summary
from trainer.launch.child import Child, Events, Started, end_all
from trainer.launch.cores import usable_cores
from trainer.settings.aliases import AGENT_STORE, MEETING
from trainer.settings.split import is_split

_OURS = ("TRAINER_", "PSERVER_", "PADDLE_")
_OTHERS = ("TRAINING_ROLE", "RANK", "WORLD_SIZE", "LOCAL_RANK", *MEETING, AGENT_STORE)
_HERE_ONLY = (
    "ps",
    "shards",
    "storage_dir",
    "checkpoint_dir",
    "log_dir",
    "trainer_id",
    "threads",
    "master",
    "metrics_bind",
)
READY = re.compile(r"shard \d+ of \d+ ready on (\S+)")
_START_S = 300.0  # for a server of this machine to say that it is ready; the first one ever compiles its kernels
_POLL_S = 0.2


def launch(settings: RunSettings, *, environ: Mapping[str, str]) -> Summary:
    """Run all trainers of a job to their end and return their figures as one.

    Args:
        settings: of the run, with more than one trainer.
        environ: of this process; what names settings is taken out of the trainers' own.

    Raises:
        pserver.ConfigError: a trainer refused its settings.
        TrainerError: a trainer or a server failed; all have ended.
    """
    folder = Path(settings.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    clean = without_ours(environ)
    # numpy's threads wait by spinning, which takes the cores from the other trainers: 32 against 25 ms a step of two
    # small stages on two cores.
    clean.setdefault("OPENBLAS_NUM_THREADS", str(_threads(settings)))
    events: Events = queue.Queue()
    with contextlib.ExitStack() as stack:
        ps = settings.ps or stack.enter_context(_servers(settings, folder, clean))
        master = settings.master or f"127.0.0.1:{_free_port()}"
        trainers: list[Child] = []
        stack.callback(end_all, trainers)
        for number in range(settings.trainers):
            flags = trainer_flags(settings, number, ps=ps, master=master)
            command = [*_python("trainer"), "run", *flags]
            log = folder / f"trainer-{number}.log"
            trainers.append(
                Child(f"trainer {number}", number, command, log=log, environ=clean, events=events)
            )
        return follow(settings, trainers, events)


def without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the names of settings: processes get theirs as flags."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OURS) and name not in _OTHERS
    }


def trainer_flags(settings: RunSettings, number: int, *, ps: str, master: str) -> list[str]:
    """Return the flags of one trainer: those settings that were given, and its place.

    Args:
        settings: of the job.
        number: of the trainer.
        ps: the servers.
        master: where trainers meet, if they do.
    """
    given = sorted(settings.model_fields_set.difference(_HERE_ONLY))
    flags = [given_flag(name, getattr(settings, name)) for name in given]
    own: dict[str, object] = {"ps": ps, "trainer_id": number, "threads": _threads(settings)}
    own["metrics_bind"] = page_of(settings.metrics_bind, number)
    if meets(settings):
        own["master"] = master
    flags += [given_flag(name, value) for name, value in own.items()]
    return [*(flag for flag in flags if flag), "--json", "--json-progress"]


def _threads(settings: RunSettings) -> int:
    """Return the threads with which each trainer of this machine computes."""
    return settings.threads or max(1, usable_cores() // settings.trainers)


def meets(settings: RunSettings) -> bool:
    """Return whether the trainers of a job meet each other, beside the servers."""
    return settings.dense == "allreduce" or settings.stages > 1


def page_of(bind: str | None, number: int) -> str | None:
    """Return where a trainer of several has its metrics page: the port rises with its number.

    >>> page_of("127.0.0.1:9180", 3), page_of("127.0.0.1:0", 3), page_of(None, 3)
    ('127.0.0.1:9183', '127.0.0.1:0', None)
    """
    host, _, port = (bind or "").rpartition(":")
    return f"{host}:{int(port) + number}" if port.isdecimal() and int(port) else bind


def given_flag(name: str, value: object) -> str:
    """Return the flag that gives a setting a value; empty if it is not set."""
    dashed = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{dashed}" if value else f"--no-{dashed}"
    return "" if value is None else f"--{dashed}={value}"


def _free_port() -> int:
    """Return a port of this machine that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _python(module: str) -> list[str]:
    return [sys.executable, "-m", module]


def _servers(
    settings: RunSettings, folder: Path, environ: Mapping[str, str]
) -> contextlib.AbstractContextManager[str]:
    """Have the job's shards on this machine."""
    own = {
        "rule": settings.rule,
        "storage_dir": settings.storage_dir,
        "checkpoint_dir": settings.checkpoint_dir,
        "restore": "latest" if settings.resume else None,
        "log_format": settings.log_format,
        "trace": settings.trace and pserver.numbered_file(settings.trace, "server"),
        "otel_endpoint": settings.otel_endpoint,
    }
    return servers_here(settings.shards, folder, environ, own=own)


@contextlib.contextmanager
def servers_here(
    shards: int, folder: Path, environ: Mapping[str, str], *, own: Mapping[str, object]
) -> Iterator[str]:
    """Have servers in processes of this machine; give their endpoints.

    Args:
        shards: how many.
        folder: of their logs.
        environ: all of their environment.
        own: settings of theirs beside where they are.

    Raises:
        TrainerError: one did not start.
    """
    events: Events = queue.Queue()
    servers: list[Child] = []
    place = {"shards": shards, "bind": "127.0.0.1:0", "drain_s": 0.0, "log_level": "warning"}
    flags = [flag for name, value in {**place, **own}.items() if (flag := given_flag(name, value))]
    try:
        for shard in range(shards):
            command = [*_python("pserver"), "serve", f"--shard={shard}", *flags]
            log = folder / f"server-{shard}.log"
            servers.append(
                Child(f"server {shard}", shard, command, log=log, environ=environ, events=events)
            )
        yield ",".join(_endpoints(servers, events))
    finally:
        end_all(servers)


def _endpoints(servers: list[Child], events: Events) -> list[str]:
    """Return where each server listens, once all do."""
    found: dict[int, str] = {}
    until = time.monotonic() + _START_S
    while len(found) < len(servers):
        try:
            server, line = events.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            missing = ", ".join(s.name for s in servers if s.number not in found)
            raise TrainerError(f"{missing}: not ready within {_START_S:.0f} s") from None
        if line is None:
            status = server.wait()
            raise TrainerError(
                f"{server.name} ended with status {status} before it was ready: "
                f"{server.reason()}; its log is {server.log}"
            )
        if match := READY.search(line):
            found[server.number] = match[1]
    return [found[server.number] for server in servers]


def follow(settings: RunSettings, trainers: Sequence[Started], events: Events) -> Summary:
    """Show the trainers until all have ended, and return their figures.

    Args:
        settings: of the run.
        trainers: of the job.
        events: their lines and ends; any other process is a server, and its end that of the job.

    Raises:
        pserver.ConfigError: a trainer refused its settings.
        TrainerError: one failed, and the others do not go on, or a server ended.
    """
    summaries: dict[int, Summary] = {}
    steps: dict[int, int] = {}
    failures: list[str] = []
    running = set(trainers)
    ranks = settings.stages // settings.virtual
    title = f"train {settings.model} {settings.mode}"
    with ManyView(title=title, num=len(trainers), each=ranks) as view:
        while running:
            try:
                trainer, line = events.get(timeout=_POLL_S)
            except queue.Empty:
                view.show()
                continue
            if trainer not in trainers:
                raise TrainerError(_ended(trainer))
            if line is None:
                running.discard(trainer)
                view.end(trainer.number)
                status = trainer.wait()
                if status or trainer.number not in summaries:
                    step = steps.get(trainer.number, 0)
                    failures.append(_failed(settings, trainer, step=step))
                continue
            told = json.loads(line)
            if "progress" in told:
                view.update(trainer.number, told["progress"])
                steps[trainer.number] = told["progress"].get("step", 0)
            else:
                summaries[trainer.number] = Summary(**told)
    if not summaries:
        raise TrainerError("; ".join(failures))
    ordered = [summaries[n] for n in sorted(summaries) if n % ranks == 0]  # the first of pipelines
    now = _incarnations(settings) if settings.on_restart == "go_on" else {}
    ordered = [dataclasses.replace(one, lost=settled(one.lost, now)) for one in ordered]
    merged = merged_summary(ordered, failures, base=settings.base_samples_per_s)
    return dataclasses.replace(merged, trainers=len(summaries))


def _ended(process: Started) -> str:
    """Return what is told of a process that ended, or failed."""
    return f"{process.name} {process.how()}: {process.reason()}; its log is {process.log}"


def _incarnations(settings: RunSettings) -> dict[int, int]:
    """Return which process each shard is now that all trainers have ended; none if they cannot be asked."""
    assert settings.ps is not None, "the settings were checked"
    with (
        contextlib.suppress(pserver.PserverError),
        pserver.connect(settings.ps, settings=settings.client_settings()) as client,
    ):
        return {info.shard: info.incarnation for info in client.shards}
    return {}


def _failed(settings: RunSettings, trainer: Started, *, step: int) -> str:
    """Return what is told of a trainer that failed, if the others go on; raise it if not.

    Args:
        settings: of the run.
        trainer: that ended.
        step: the last one that it told of.

    Raises:
        pserver.ConfigError: it refused its settings.
        TrainerError: it failed otherwise.
    """
    told, status = _ended(trainer), trainer.wait()
    goes_on = settings.on_missing != "fail" if settings.mode == "sync" else status < 0
    if goes_on and not is_split(settings):
        return f"{told}; step {step} was the last that it told of, {_lost(settings)}"
    if status == pserver.USAGE_EXIT:
        raise pserver.ConfigError(told)
    raise TrainerError(f"{told}; the others were ended")


def _lost(settings: RunSettings) -> str:
    """Return what becomes of the rows of a trainer that is gone."""
    if settings.data_mode == "dynamic":
        return "the ranges that it held went to the others, and what it had pushed of them counts twice"
    if settings.mode == "geo":
        return (
            "the rest of its share was not trained on, and its last window, up to "
            f"{settings.k_steps} steps, was not told of"
        )
    return "the rest of its share was not trained on"
