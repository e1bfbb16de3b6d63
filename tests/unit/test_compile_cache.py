"""What ``pserver.compile_cache`` promises: a folder for compiled kernels, wherever the process runs."""

import os
import tempfile
from pathlib import Path

import pytest
from numba.core import config

from pserver import compile_cache


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """Return a folder that nobody can make or write to, whoever runs this."""
    file = tmp_path / "file"
    file.touch()
    return str(file / "cache")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where temporary folders are made."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_nothing_is_done_where_the_folder_can_be_written(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that was asked for is made and kept; without one numba's own choice is."""
    for asked in (str(tmp_path / "deep" / "cache"), ""):
        monkeypatch.setattr(config, "CACHE_DIR", asked)

        assert compile_cache._place() is None
        assert asked == compile_cache._settings.CACHE_DIR

    assert (tmp_path / "deep" / "cache").is_dir()
    assert not list(temporary.iterdir())


def test_a_temporary_folder_takes_its_place_where_it_cannot(
    nowhere: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba is told of it, and it goes with the process that made it only."""
    monkeypatch.setattr(config, "CACHE_DIR", nowhere)

    made = compile_cache._place()

    assert made is not None
    assert made == compile_cache._settings.CACHE_DIR
    assert [str(path) for path in temporary.iterdir()] == [made]
    compile_cache._remove(made, os.getpid() + 1)
    assert Path(made).is_dir()
    compile_cache._remove(made, os.getpid())
    assert not Path(made).exists()


def test_what_was_compiled_is_copied(tmp_path: Path, temporary: Path) -> None:
    """Each kernel of the old folder is in the new one, by the same name, and can be replaced."""
    (tmp_path / "cache" / "kernel_0a").mkdir(parents=True)
    (tmp_path / "cache" / "kernel_0a" / "rows.nbi").write_bytes(b"index")
    (tmp_path / "cache" / "kernel_0a" / "rows.nbi").chmod(0o444)

    copied = Path(compile_cache._copied(str(tmp_path / "cache")), "kernel_0a", "rows.nbi")

    assert copied.read_bytes() == b"index"
    assert copied.stat().st_mode & 0o200


def test_the_error_says_what_to_do_where_there_is_nowhere_to_write(
    nowhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names what was tried, and asks for a writable /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", nowhere)

    with pytest.raises(RuntimeError, match=r"NUMBA_CACHE_DIR.*writable /tmp"):
        compile_cache._copied("")
