"""What ``pserver.tls`` promises: files that fit, in their time, read again when they change."""

from collections.abc import Callable
from pathlib import Path

import pytest

import pserver
from pserver.config import TlsSettings
from pserver.tls import FreshTls, TlsFiles, tls_of
from tests.certificates import files, made


def no_file(folder: Path) -> None:
    (folder / "client.pem").unlink()


def no_key(folder: Path) -> None:
    (folder / "client-key.pem").unlink()


def a_folder(folder: Path) -> None:
    (folder / "ca.pem").unlink()
    (folder / "ca.pem").mkdir()


def another_key(folder: Path) -> None:
    (folder / "server-key.pem").rename(folder / "client-key.pem")


def no_pem(folder: Path) -> None:
    (folder / "ca.pem").write_text("nothing of that kind")


def expired(folder: Path) -> None:
    made(folder, days=-1)


BROKEN: list[tuple[Callable[[Path], None], str]] = [
    (no_file, r"--tls-cert .*client.pem: cannot be read: No such file"),
    (no_key, r"--tls-key .*client-key.pem: cannot be read: No such file"),
    (a_folder, r"--tls-ca .*ca.pem: cannot be read: Is a directory"),
    (another_key, r"--tls-cert .* and --tls-key .*: must be .* its own key.*mismatch"),
    (no_pem, r"--tls-ca .*ca.pem: must hold PEM certificates"),
    (expired, r"--tls-cert .*client.pem: the certificate has expired; give a new one"),
]


@pytest.mark.parametrize(("breaks", "said"), BROKEN)
def test_files_are_refused_at_start_when_they_do_not_fit(
    tmp_path: Path, breaks: Callable[[Path], None], said: str
) -> None:
    """The error names flag, file and reason."""
    breaks(made(tmp_path))

    with pytest.raises(pserver.ConfigError, match=said):
        tls_of(TlsSettings(**files(tmp_path)))


def test_a_part_of_the_three_is_refused() -> None:
    """TLS takes all three files; the error says which are missing."""
    with pytest.raises(pserver.ConfigError, match="tls_key, tls_ca missing"):
        TlsSettings.make({"tls_cert": "c.pem"}, origins={"tls_cert": "flag --tls-cert"})


def test_other_files_are_taken_once_when_they_changed(tmp_path: Path) -> None:
    """A renewal sees new files, once, and the same ones not at all."""
    tls = FreshTls(TlsFiles(**_names(made(tmp_path))))
    before = tls.pems

    assert not tls.renew()
    made(tmp_path)
    assert tls.renew()
    assert not tls.renew()
    assert (tls.generation, tls.pems.ca) == (2, before.ca)
    assert tls.pems.cert != before.cert


@pytest.mark.parametrize(("breaks", "said"), BROKEN)
def test_what_was_read_stays_when_files_become_unusable(
    tmp_path: Path, breaks: Callable[[Path], None], said: str
) -> None:
    """A renewal that fails changes nothing, and the next whole set is taken."""
    tls = FreshTls(TlsFiles(**_names(made(tmp_path))))
    before = tls.pems
    breaks(tmp_path)

    assert not tls.renew()
    assert (tls.generation, tls.pems) == (1, before)

    for path in tmp_path.iterdir():
        path.rmdir() if path.is_dir() else path.unlink()
    made(tmp_path)
    assert tls.renew()
    assert said


def _names(folder: Path) -> dict[str, str]:
    return {name.removeprefix("tls_"): path for name, path in files(folder).items()}
