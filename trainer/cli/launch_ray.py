"""``trainer launch --on ray``: flags and a job.toml to a job on Ray, and how it went.

Rooms before and after: ``cli.launch`` has the flags; ``launch.ray_cluster`` runs the job.
"""

import argparse
import json
import secrets
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from rich.console import Console

import pserver
from trainer.config import RunSettings
from trainer.launch.ray_job import RayJob, servers_of
from trainer.settings.aliases import RunAliases


def launch_on_ray_of(given: argparse.Namespace, *, environ: MutableMapping[str, str]) -> None:
    """Run a job on Ray and print its figures.

    Args:
        given: of ``trainer launch``.
        environ: of this process.

    Raises:
        pserver.ConfigError: flags or settings cannot work, or there is no Ray here.
        TrainerError: the job failed.
    """
    token = secrets.token_hex(4)
    folder = Path(tempfile.gettempdir()) / f"trainer-{token}"
    shards = 1 if given.shards is None else given.shards
    settings, as_json = _settings(given, environ, ps=servers_of(folder, shards))
    has_log_dir = "log_dir" in settings.model_fields_set
    given_sizes = {n: getattr(given, n) for n in ("server_cpus", "trainer_cpus", "trainer_gpus")}
    job = RayJob(
        target=given.target,
        job_id=given.job_id or f"trainer-{token}",
        log_dir=given.log_dir or Path(settings.log_dir if has_log_dir else "logs"),
        shards=shards,
        address=given.ray_address or environ.get("RAY_ADDRESS"),
        journal=given.journal,
        max_restarts=given.max_restarts,
        **{name: size for name, size in given_sizes.items() if size is not None},
    )
    restarts = job.restarts(settings)
    # A cluster of our own would tell its makers that it was there.
    environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from trainer.launch.ray_cluster import launch_on_ray
    except ModuleNotFoundError as error:
        raise pserver.ConfigError(
            f"--on ray needs a package that is not here ({error.name}): install pserver[ray]"
        ) from error
    if settings.log_format == "json":
        pserver.configure_logs("info", form="json")
    else:
        pserver.configure_logs("warning")
    summary = launch_on_ray(job, settings, folder=folder, restarts=restarts)
    from trainer.job.summary import summary_table

    if as_json:
        print(json.dumps(summary.as_dict()), flush=True)
    else:
        Console().print(summary_table(summary))


def _settings(
    given: argparse.Namespace, environ: MutableMapping[str, str], *, ps: str
) -> tuple[RunSettings, bool]:
    """Return the settings of the trainers, and whether their figures are wanted as JSON."""
    parser = pserver.CommandParser(prog="trainer launch --on ray ... job.toml", add_help=False)
    pserver.add_flags(parser, RunSettings)
    parser.add_argument("--json", action="store_true")
    words = vars(parser.parse_args(given.words))
    if given.trainers is not None:
        words.setdefault("trainers", given.trainers)
        if words["trainers"] != given.trainers:
            raise pserver.ConfigError(
                f"trainers says {given.trainers} before the job and {words['trainers']} after it"
            )
    settings, _ = pserver.resolve(
        RunSettings,
        {**words, "ps": ps},
        environ=environ,
        prefix="TRAINER_",
        file=str(given.target),
        section="run",
        aliases=RunAliases(),
    )
    return settings, words["json"]
