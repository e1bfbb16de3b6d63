"""Become a program that is killed when the process that started it ends, however that one ends.

Rooms before and after: ``launch.child`` and ``launch.ranks`` start servers, trainers and ranks so, since a killed process
ends nothing. The kernel looks at the thread that started the program, so that one must last. Linux only, as the whole product. Run as a file of its own, so nothing of ours
is imported and the way through it takes 20 ms.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

_PR_SET_PDEATHSIG = 1  # prctl(2): kept over execve


def on_leash(command: Sequence[str]) -> list[str]:
    """Return what starts a command so that it does not outlive this process.

    Args:
        command: the path of a program, and its arguments.
    """
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def become(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by a program.

    Args:
        arguments: the id of the process that it may not outlive, the program's path, and its arguments.

    Raises:
        SystemExit: that process has ended already.
        OSError: the program cannot be run.
    """
    owner, *command = arguments
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl does not set the signal of a parent's death")
    if os.getppid() != int(owner):
        raise SystemExit(f"the process {owner} that started this one has ended")
    os.execv(command[0], command)


if __name__ == "__main__":
    become(sys.argv[1:])
