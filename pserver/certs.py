"""A development authority and the certificates and tokens of a cluster, in one folder.

Rooms before and after: ``cli.certs`` is the command. This is the one room that needs the package
``cryptography`` (the extra ``certs``), and nothing imports it but when it is asked for.

What always holds: keys and tokens are readable by their owner only. An authority that is there is kept, so what it
vouched for goes on; certificates and tokens are renewed. For production take your own authority.
"""

import datetime
import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pserver.errors import ConfigError

ROLES: Final = ("read", "train", "admin")
_CA_DAYS: Final = 3650
_EARLY: Final = datetime.timedelta(minutes=5)  # clocks of machines differ


@dataclass(frozen=True, slots=True)
class Authority:
    """Who vouches: a certificate and its key."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def make_certs(folder: Path, *, hosts: Sequence[str], days: float) -> list[str]:
    """Write an authority, certificates of servers and clients, and tokens; return the files' names.

    Args:
        folder: made if need be.
        hosts: names and addresses by which clients call the servers.
        days: that certificates hold; negative ones are expired, for tests.

    Raises:
        ConfigError: the folder cannot be written, or holds half an authority.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        authority = _authority(folder)
        issue(authority, folder, "server", hosts=hosts, days=days)
        issue(authority, folder, "client", hosts=(), days=days)
        _write_tokens(folder)
    except OSError as error:
        raise ConfigError(f"certs make {folder}: {error}") from error
    return sorted(path.name for path in folder.iterdir())


def issue(
    authority: Authority, folder: Path, name: str, *, hosts: Sequence[str], days: float
) -> None:
    """Write ``NAME.pem`` and ``NAME-key.pem``, vouched for by an authority.

    Args:
        authority: that signs.
        folder: where to.
        name: of the files, and common name of the certificate.
        hosts: that it is for; with none it is a client's, else good for both ends.
        days: that it holds.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(name, days).issuer_name(authority.cert.subject).public_key(key.public_key())
    if hosts:
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    cert = builder.sign(authority.key, hashes.SHA256())
    _write(folder / f"{name}-key.pem", _pem(key), is_secret=True)
    _write(folder / f"{name}.pem", cert.public_bytes(serialization.Encoding.PEM))


def _authority(folder: Path) -> Authority:
    """Return the authority of a folder; make it if there is none."""
    cert_path, key_path = folder / "ca.pem", folder / "ca-key.pem"
    if cert_path.exists() != key_path.exists():
        raise ConfigError(f"certs make {folder}: has one of ca.pem and ca-key.pem; remove it")
    if cert_path.exists():
        return _read_authority(cert_path, key_path)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder("pserver development authority", _CA_DAYS)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pserver development authority")])
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    cert = (
        builder.issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _pem(key), is_secret=True)
    _write(cert_path, cert.public_bytes(serialization.Encoding.PEM))
    return Authority(cert, key)


def _read_authority(cert_path: Path, key_path: Path) -> Authority:
    try:
        key = serialization.load_pem_private_key(key_path.read_bytes(), password=None)
        cert = x509.load_pem_x509_certificate(cert_path.read_bytes())
    except (ValueError, TypeError) as error:
        raise ConfigError(f"certs make: {cert_path} and {key_path}: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"certs make: {key_path} is no key that this command made")
    return Authority(cert, key)


def _builder(name: str, days: float) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    begin = min(now, end - datetime.timedelta(days=1)) - _EARLY
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_tokens(folder: Path) -> None:
    """Write a token for each role: a file for the clients that have it, and the server's with all."""
    lines = []
    for role in ROLES:
        token = secrets.token_urlsafe(32)
        _write(folder / f"{role}.token", f"{token}\n".encode(), is_secret=True)
        lines.append(f'[{role}]\ntoken = "{token}"\nrole = "{role}"\n')
    _write(folder / "tokens.toml", "\n".join(lines).encode(), is_secret=True)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, data: bytes, *, is_secret: bool = False) -> None:
    """Replace a file at once, so that nobody reads a half of it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if is_secret else 0o644)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    fresh.rename(path)
