"""A real Slurm cluster on loopback, in a folder of its own: munge, a controller, and a daemon for each node.

What always holds: nothing of this machine's own Slurm is read or changed, and no daemon outlives the ``with``. Where
root runs it, it is root's; else the user's own. A node's name is an address, so that a server can bind to it.
"""

import contextlib
import getpass
import os
import secrets
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

NODES = ("127.0.0.1", "127.0.0.2")
COMMANDS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "sinfo")
WAIT_S = 120.0

_CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
NodeName={nodes[0]} NodeAddr={nodes[0]} NodeHostname=localhost Port={ports[1]} CPUs=8
NodeName={nodes[1]} NodeAddr={nodes[1]} NodeHostname=localhost Port={ports[2]} CPUs=8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def is_here() -> bool:
    """Return whether Slurm's programs and munge are on PATH, or where Debian has them."""
    return all(shutil.which(name, path=_path()) for name in COMMANDS)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


def wait_until(holds: Callable[[], bool], *, what: str) -> None:
    """Return once something holds.

    Raises:
        AssertionError: it does not within two minutes.
    """
    until = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until, what
        threading.Event().wait(0.1)


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for one in sockets:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in sockets]


class Slurm:
    """The cluster, as its commands show it.

    Attributes:
        environ: for commands of this cluster.
    """

    def __init__(self, folder: Path) -> None:
        """Take over a folder with a cluster's settings."""
        self.environ = {
            **os.environ,
            "PATH": _path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
        }

    def ask(self, *words: str) -> str:
        """Return what a command prints; nothing if it fails."""
        done = subprocess.run(
            words, env=self.environ, capture_output=True, text=True, check=False, timeout=WAIT_S
        )
        return done.stdout if done.returncode == 0 else ""

    def job(self, number: str) -> dict[str, str]:
        """Return what Slurm knows of a job, such as JobState and ExitCode (status:signal)."""
        words = self.ask("scontrol", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_job(self, number: str, *states: str) -> dict[str, str]:
        """Return what Slurm knows of a job once it is in one of some states."""
        wait_until(lambda: self.job(number).get("JobState") in states, what=str(self.job(number)))
        return self.job(number)


@contextlib.contextmanager
def _running(words: Sequence[str], environ: dict[str, str], log: Path) -> Iterator[None]:
    """Have a daemon in the foreground, and end it."""
    with log.open("wb") as file:
        daemon = subprocess.Popen(words, env=environ, stdout=file, stderr=file)
    try:
        yield
    finally:
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Slurm]:
    """Have a cluster of two nodes whose state lies in a folder, until the block is left."""
    munge = folder / "munge"
    for each in (munge, folder / "controller", *(folder / f"spool-{node}" for node in NODES)):
        each.mkdir(mode=0o700)
    (munge / "key").write_bytes(secrets.token_bytes(1024))
    (munge / "key").chmod(0o400)
    text = _CONF.format(folder=folder, ports=_free_ports(3), user=getpass.getuser(), nodes=NODES)
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    slurm = Slurm(folder)
    own = [f"--{name}-file={munge / name}" for name in ("key", "pid", "log", "seed")]
    daemons = [["munged", "--foreground", "--force", f"--socket={munge / 'socket'}", *own]]
    daemons += [["slurmctld", "-D", "-c"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    with contextlib.ExitStack() as stack:
        for number, words in enumerate(daemons):
            log = folder / f"daemon-{number}.log"
            stack.enter_context(_running(words, slurm.environ, log))
            if words[0] == "munged":
                wait_until((munge / "socket").exists, what=log.read_text("utf-8"))
        states = ("sinfo", "--noheader", "--Node", "--format=%T")
        wait_until(
            lambda: slurm.ask(*states).split() == ["idle"] * len(NODES), what="no idle nodes"
        )
        yield slurm
