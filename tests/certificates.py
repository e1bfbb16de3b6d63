"""Certificates for tests, made by the product's own room."""

from pathlib import Path

from pserver.certs import make_certs

HOSTS = ("localhost", "127.0.0.1")


def files(folder: Path, name: str = "client", *, ca: Path | None = None) -> dict[str, str]:
    """Return the settings that name the files of an end; the authority may be another folder's."""
    return {
        "tls_cert": str(folder / f"{name}.pem"),
        "tls_key": str(folder / f"{name}-key.pem"),
        "tls_ca": str((ca or folder) / "ca.pem"),
    }


def made(folder: Path, *, days: float = 1) -> Path:
    """Return a folder with an authority, certificates and tokens."""
    make_certs(folder, hosts=HOSTS, days=days)
    return folder


def token(folder: Path, role: str) -> str:
    """Return the token of a role."""
    return (folder / f"{role}.token").read_text().strip()
