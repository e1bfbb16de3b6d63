"""``srun``, ``scancel`` and ``scontrol`` on this machine: the part of Slurm that ``deploy/slurm`` leans on.

Every node is a loopback address. A task gets the variables that srun(1) lists, and its output the file of
``--output`` with ``%t`` as its number; a signal of scancel reaches all tasks, while SIGTERM to srun kills them, as Slurm
22.05 was seen to do; the highest exit status is srun's, 128 and the signal for a task that one ended. A flag that is not
known here ends srun, as a misspelt one does there.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil


def hosts_of(text: str) -> list[str]:
    """Return the names of a list such as ``127.0.0.[1-2],127.0.0.7``."""
    hosts: list[str] = []
    for prefix, ranges, plain in re.findall(r"([^,\[]+)\[([^\]]+)\]|([^,]+)", text):
        for part in ranges.split(",") if ranges else []:
            low, _, high = part.partition("-")
            hosts += [f"{prefix}{number}" for number in range(int(low), int(high or low) + 1)]
        hosts += [plain] if plain else []
    return hosts


def scontrol(words: list[str]) -> int:
    """Be ``scontrol show hostnames LIST``."""
    assert words[:2] == ["show", "hostnames"]
    sys.stdout.write("".join(f"{host}\n" for host in hosts_of(words[2])))
    return 0


def steps_of(job: str) -> Path:
    """Return the folder with a file for each step that runs, whose name is the id of its srun."""
    return Path(f"steps-{job}")


def scancel(words: list[str]) -> int:
    """Be ``scancel --signal=TERM JOB``."""
    signal_word, job = words
    assert signal_word == "--signal=TERM"
    for step in steps_of(job).iterdir():
        os.kill(int(step.name), signal.SIGUSR1)
    return 0


def tell(task: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to all processes of a task."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(task.pid)
        for one in (*first.children(recursive=True), first):
            one.send_signal(number)


def srun(words: list[str]) -> int:
    """Be a step of the job: all tasks at once."""
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    parser.add_argument("--nodelist", default=os.environ["SLURM_JOB_NODELIST"])
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--ntasks", type=int, required=True)
    parser.add_argument("--ntasks-per-node", type=int)
    parser.add_argument("--overlap", action="store_true", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--open-mode", choices=("append",), required=True)
    parser.add_argument("--kill-on-bad-exit", type=int, choices=(0, 1), default=0)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    hosts = hosts_of(given.nodelist)
    assert len(hosts) == (given.nodes or len(hosts))
    assert given.ntasks <= len(hosts) * (given.ntasks_per_node or given.ntasks)
    tasks: list[subprocess.Popen[bytes]] = []

    def end(number: int, _: object) -> None:
        for task in tasks:
            tell(task, signal.SIGTERM if number == signal.SIGUSR1 else signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGUSR1, end)
    step = steps_of(os.environ["SLURM_JOB_ID"]) / str(os.getpid())
    step.parent.mkdir(exist_ok=True)
    step.touch()
    for number in range(given.ntasks):
        node = number * len(hosts) // given.ntasks  # in blocks, as Slurm does by default
        own = {
            "SLURM_PROCID": number,
            "SLURM_NTASKS": given.ntasks,
            "SLURM_NODEID": node,
            "SLURMD_NODENAME": hosts[node],
        }
        environ = {**os.environ, **{name: str(value) for name, value in own.items()}}
        with Path(given.output.replace("%t", str(number))).open("ab") as log:
            tasks.append(
                subprocess.Popen(given.command, env=environ, stdout=log, stderr=subprocess.STDOUT)
            )
    running = list(tasks)
    while running:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        running = [task for task in running if task.poll() is None]
        if given.kill_on_bad_exit and any(task.returncode for task in tasks):
            for task in running:
                tell(task, signal.SIGTERM)
    step.unlink()
    return max(code if code >= 0 else 128 - code for code in (task.returncode for task in tasks))


if __name__ == "__main__":
    name = Path(sys.argv[0]).name
    sys.exit({"srun": srun, "scancel": scancel, "scontrol": scontrol}[name](sys.argv[1:]))
