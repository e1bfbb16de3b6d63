"""Compiled kernels lie where they can be written, before the first kernel is declared.

Rooms before and after: ``pserver/__init__`` imports this first; every module with a kernel comes later.

Numba takes the first folder that it may write to: ``NUMBA_CACHE_DIR``, one beside the source, one in the home folder.
So a cache that was made for an image and is read-only there is passed over, and without any such folder the import
ends: as in a container whose root is read-only and whose user has no home.

What always holds: where ``NUMBA_CACHE_DIR`` can be written to, or is not said and numba has another folder, nothing is
done. Else this process has a temporary folder, which begins with what the cache has, so that what was compiled is
loaded; it is removed when the process ends. Set once, at import; read by anybody.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from numba.core import caching, config

_settings: Any = config  # numba makes its names at run time


def _probe() -> None:
    """Stand for a kernel: numba chooses a folder for each of them by where its source lies."""


def _has_folder() -> bool:
    """Return whether the folder that was asked for can be written to, or numba finds one if none was."""
    try:
        if _settings.CACHE_DIR:
            Path(_settings.CACHE_DIR).mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=_settings.CACHE_DIR).close()
        else:
            caching.FunctionCache(_probe)
    except (OSError, RuntimeError):
        return False
    return True


def _copied(cache: str) -> str:
    """Return a new temporary folder with the compiled kernels of another one, if there is one.

    Raises:
        RuntimeError: there is nowhere to write at all.
    """
    try:
        folder = tempfile.mkdtemp(prefix="pserver-kernels-")
    except OSError as error:
        raise RuntimeError(
            "compiled kernels need a folder: NUMBA_CACHE_DIR, the installed packages and the home folder cannot be "
            f"written to, and there is no folder for temporary files; give the process a writable /tmp ({error})"
        ) from error
    atexit.register(_remove, folder, os.getpid())
    for file in Path(cache).glob("*/*") if cache else ():
        target = Path(folder, file.parent.name)
        target.mkdir(exist_ok=True)
        shutil.copyfile(file, target / file.name)
    return folder


def _remove(folder: str, pid: int) -> None:
    """Remove the folder if the process that made it ends, and not one that was forked from it."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


def _place() -> str | None:
    if _has_folder():
        return None
    folder = _copied(_settings.CACHE_DIR)
    _settings.CACHE_DIR = folder
    return folder


TEMPORARY: Final = _place()
"""The temporary folder that this process had to make; None: numba has one of its own."""
