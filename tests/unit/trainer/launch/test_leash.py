"""What ``trainer.launch.leash`` promises: a program does not outlive the process that started it."""

import subprocess
import sys

import psutil
import pytest

from trainer.launch import leash

WAIT_S = 30.0
CHILD = "print('up', flush=True); import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
LEASH = [sys.executable, "-I", "-S", str(leash.__file__)]
OWNER = """\
import os, subprocess, sys
leash = [*sys.argv[2:], str(os.getpid())]
child = subprocess.Popen([*leash, sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline().strip(), child.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.integration
def test_a_program_is_killed_with_the_process_that_started_it() -> None:
    """Its owner is killed, which runs nothing of its own, and the program is gone though it ignores SIGTERM."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, CHILD, *LEASH],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        said, number = owner.stdout.readline().split()
        assert said == "up"
        program = psutil.Process(int(number))

        owner.kill()

        assert psutil.wait_procs([program], timeout=WAIT_S)[1] == []


@pytest.mark.integration
def test_a_program_whose_owner_is_gone_does_not_begin() -> None:
    """The owner may have ended before the leash was on: then nothing runs, and the reason is said."""
    command = [*LEASH, "1", sys.executable, "-c", "print('up')"]

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)

    assert done.returncode == 1
    assert done.stdout == ""
    assert "the process 1 that started this one has ended" in done.stderr


@pytest.mark.integration
def test_a_program_keeps_its_arguments_and_its_status() -> None:
    """It takes the leash's place: same process, same output, same end."""
    code = "import sys; print(sys.argv[1]); raise SystemExit(5)"
    command = leash.on_leash([sys.executable, "-c", code, "a b"])

    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=WAIT_S)

    assert command[:4] == LEASH
    assert (done.returncode, done.stdout) == (5, "a b\n")
