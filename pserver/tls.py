"""The three files of mutual TLS: read, checked as a set, and read again when they change.

Rooms before and after: settings name the files; ``server.secure`` opens a port with them,
``client.credentials`` a connection.

What always holds: what is handed on was checked: the files are PEM, the key is the certificate's and has no
passphrase, the certificate is in its time. Files that are changed to something else are told of, and what was
read before stays in force.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from pserver.errors import ConfigError

log = structlog.get_logger(__name__)

_OUT_OF_TIME = {
    9: "is not valid yet",
    10: "has expired",
}  # X509_V_ERR_CERT_NOT_YET_VALID, _HAS_EXPIRED
_ROUNDS = 6  # of messages, more than a handshake has


@dataclass(frozen=True, slots=True)
class Pems:
    """What stood in the files."""

    cert: bytes
    key: bytes
    ca: bytes


class HasTls(Protocol):
    """Settings that may name the files; all of them or none."""

    tls_cert: str | None
    tls_key: str | None
    tls_ca: str | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where a process has its own certificate and key, and who vouches for those it talks to."""

    cert: str
    key: str
    ca: str

    def read(self) -> Pems:
        """Return what the files hold, checked.

        Raises:
            ConfigError: a file is missing, unreadable, no PEM, or does not fit the others; or the
                certificate is out of its time. The flag and the file are named.
        """
        cert, key, ca = (_read(*named) for named in self._named())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.cert, self.key, password=lambda: "")
        except (OSError, ValueError) as error:  # of ssl too
            raise ConfigError(
                f"--tls-cert {self.cert} and --tls-key {self.key}: must be a PEM certificate and its "
                f"own key, without a passphrase ({_said(error)})"
            ) from error
        try:
            ssl.create_default_context(cafile=self.ca)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"--tls-ca {self.ca}: must hold PEM certificates ({_said(error)})"
            ) from error
        wrong = _out_of_time(self.cert, self.key)
        if wrong:
            raise ConfigError(f"--tls-cert {self.cert}: the certificate {wrong}; give a new one")
        return Pems(cert, key, ca)

    def look(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when a file does; a file that is missing has zeros."""
        return tuple(_look(Path(path)) for _, path in self._named())

    def _named(self) -> tuple[tuple[str, str], ...]:
        return ("--tls-cert", self.cert), ("--tls-key", self.key), ("--tls-ca", self.ca)


class FreshTls:
    """The files as they were when they were last whole. Owner: whoever asks; a reader may be any thread.

    Attributes:
        pems: what is in force.
        generation: rises whenever that changes.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read them.

        Raises:
            ConfigError: as ``TlsFiles.read``.
        """
        self.files = files
        self.generation = 1
        self._look = files.look()
        self.pems = files.read()

    def renew(self) -> bool:
        """Read the files again if they changed; return whether there is something new.

        Files that cannot be used are told of once, and those before stay.
        """
        look = self.files.look()
        if look == self._look:
            return False
        self._look = look  # of before: what changes while we read is seen the next time
        try:
            pems = self.files.read()
        except ConfigError as error:
            log.warning("changed TLS files are not used", reason=str(error))
            return False
        if pems == self.pems:
            return False
        self.pems = pems
        self.generation += 1
        log.info("took new TLS files", cert=self.files.cert)
        return True


def tls_of(settings: HasTls) -> FreshTls | None:
    """Return the files that settings name, or None.

    Raises:
        ConfigError: as ``TlsFiles.read``.
    """
    cert, key, ca = settings.tls_cert, settings.tls_key, settings.tls_ca
    if cert is None or key is None or ca is None:
        return None
    return FreshTls(TlsFiles(cert, key, ca))


def _look(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(flag: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be read: {error.strerror}") from error


def _said(error: Exception) -> str:
    """Return what the library calls it, in its own words or ours."""
    reason = getattr(error, "reason", None)
    return str(reason).replace("_", " ").lower() if reason else str(error)


def _out_of_time(cert: str, key: str) -> str:
    """Return what is wrong with the dates of a certificate, or an empty text.

    The standard library reads no dates of a file, but its handshake judges them: here in memory, with the
    certificate as its own authority, as a server's and as a client's, since it may be good for one only.
    """
    said = (_judged(cert, key, as_server=True), _judged(cert, key, as_server=False))
    return said[0] or said[1]


def _judged(cert: str, key: str, *, as_server: bool) -> str:
    """Return what the other end of a handshake finds of a certificate's dates."""
    server, client = (
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    for context in (server, client):
        context.load_cert_chain(cert, key)
    judge = client if as_server else server
    judge.verify_mode = ssl.CERT_REQUIRED
    judge.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    judge.load_verify_locations(cert)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for _ in range(_ROUNDS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return _OUT_OF_TIME.get(error.verify_code, "")
            except ssl.SSLError:
                return ""
    return ""
