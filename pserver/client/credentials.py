"""What a client shows its servers: a certificate, and a token with each call.

Rooms before and after: ``connect`` reads the settings, once for all shards; ``channel`` opens connections with
it and asks for newer ones when a call failed.

What always holds: the token is in no error and no log. Files that changed are used from the next connection, or
the next call that was refused for its token, on. Thread-safe.
"""

import contextlib
import threading
from pathlib import Path
from typing import Final

import grpc

from pserver.config import AccessSettings
from pserver.errors import ConfigError
from pserver.tls import tls_of
from pserver.transport import client_options

_TOKEN_CHARS_MAX = 512

Metadata = tuple[tuple[str, str], ...]


def read_token(path: str) -> str:
    """Return the token that a file holds.

    Raises:
        ConfigError: the file cannot be read, or does not hold one word; what it holds is not said.
    """
    try:
        words = Path(path).read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: cannot be read: {error}") from error
    if len(words) != 1 or len(words[0]) > _TOKEN_CHARS_MAX or not words[0].isprintable():
        raise ConfigError(
            f"--token-file {path}: must hold one token and nothing else; a server's file, with names and "
            "roles, is not for clients"
        )
    return words[0]


class Credentials:
    """The files of one client.

    Attributes:
        metadata: of each call.
        generation: rises when connections made now differ from those made before.
    """

    def __init__(self, settings: AccessSettings) -> None:
        """Read the files.

        Raises:
            ConfigError: one of them cannot be used.
        """
        self._tls = tls_of(settings)
        self._token_file = settings.token_file
        self._lock = threading.Lock()  # one thread reads files at a time
        self.metadata = self._read_metadata()

    @property
    def generation(self) -> int:
        """Return how often the certificates were read anew."""
        return 0 if self._tls is None else self._tls.generation

    @property
    def is_tls(self) -> bool:
        """Return whether servers are shown a certificate."""
        return self._tls is not None

    def open(self, endpoint: str) -> grpc.Channel:
        """Return a connection to be made to a server."""
        if self._tls is None:
            return grpc.insecure_channel(endpoint, options=client_options())
        pems = self._tls.pems
        shown = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
        return grpc.secure_channel(endpoint, shown, options=client_options())

    def renew_tls(self) -> None:
        """Read certificates that changed."""
        if self._tls is not None:
            with self._lock:
                self._tls.renew()

    def renew_token(self) -> None:
        """Read the token again; one that cannot be read stays as it was."""
        # The refusal of the server, which comes next then, says what matters.
        with self._lock, contextlib.suppress(ConfigError):
            self.metadata = self._read_metadata()

    def _read_metadata(self) -> Metadata:
        if self._token_file is None:
            return ()
        return (("authorization", f"Bearer {read_token(self._token_file)}"),)


OPEN: Final = Credentials(AccessSettings())
"""Neither certificate nor token."""
