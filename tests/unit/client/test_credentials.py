"""What a client does with certificates and tokens that change while it runs."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import pserver
from pserver.client.channel import GrpcChannel
from pserver.client.credentials import Credentials, read_token
from pserver.config import AccessSettings, TlsSettings
from pserver.deadline import Deadline
from pserver.server.app import Listening, listen
from pserver.server.auth import Access
from pserver.server.servicer import Servicer
from pserver.tls import tls_of
from tests.certificates import files, made

pytestmark = pytest.mark.integration
WAIT_S = 20.0


def credentials(folder: Path, role: str = "train") -> Credentials:
    """Return what a client shows with the files of a folder."""
    token = str(folder / f"{role}.token")
    return Credentials(AccessSettings(**files(folder), token_file=token))


async def served(folder: Path, servicer: Servicer, *, port: int = 0) -> Listening:
    """Serve with the files of a folder."""
    tls = tls_of(TlsSettings(**files(folder, "server")))
    access = Access(str(folder / "tokens.toml"))
    return await listen(servicer, bind=f"localhost:{port}", access=access, tls=tls)


async def describe(channel: GrpcChannel, *, tries: int = 1) -> bytes:
    """Return the reply of a server, asking again while it cannot be reached."""
    for left in reversed(range(tries)):
        try:
            return await channel.call("Describe", b"", deadline=Deadline.after(WAIT_S))
        except pserver.UnavailableError:
            if not left:
                raise
    raise AssertionError("unreachable")


def with_server(folder: Path, work: Callable[[Servicer, Listening], Awaitable[None]]) -> None:
    """Do something with a server, which ends with it."""

    async def run() -> None:
        servicer = Servicer(shard=0, num_shards=1, queue_max=8)
        listening = await served(folder, servicer)
        try:
            await work(servicer, listening)
        finally:
            await listening.server.stop(None)
            servicer.close()

    asyncio.run(run())


def replace(folder: Path, other: Path) -> None:
    """Put other files in place."""
    for path in other.iterdir():
        shutil.copy(path, folder / path.name)


def test_a_server_takes_other_certificates_when_its_files_change(tmp_path: Path) -> None:
    """Who has the new authority comes in without a restart, who has the old one no more."""
    own, old, new = (made(tmp_path / name) for name in ("own", "old", "new"))
    replace(own, old)

    async def work(_: Servicer, listening: Listening) -> None:
        endpoint = f"localhost:{listening.port}"
        before = GrpcChannel(endpoint, credentials(old))
        assert await describe(before)
        replace(own, new)
        shutil.copy(old / "tokens.toml", own / "tokens.toml")
        after, late = (
            GrpcChannel(
                endpoint,
                Credentials(AccessSettings(**files(each), token_file=str(old / "train.token"))),
            )
            for each in (new, old)
        )
        assert await describe(after)
        assert await describe(before)  # its connection stays
        with pytest.raises(pserver.UnavailableError):
            await describe(late)
        for channel in (before, after, late):
            await channel.close()

    with_server(own, work)


def test_a_client_takes_other_certificates_when_it_connects_again(tmp_path: Path) -> None:
    """A server that comes back with another authority is reached once the client's files are new too."""
    mine, theirs, new = (made(tmp_path / name) for name in ("mine", "theirs", "new"))
    replace(mine, theirs)

    async def work(servicer: Servicer, listening: Listening) -> None:
        channel = GrpcChannel(f"localhost:{listening.port}", credentials(mine))
        assert await describe(channel)
        await listening.server.stop(None)
        again = await served(new, servicer, port=listening.port)
        with pytest.raises(pserver.UnavailableError):
            await describe(channel)
        replace(mine, new)
        with pytest.raises((pserver.UnavailableError, pserver.UnauthenticatedError)):
            await describe(channel)  # the last try with the old files, which looks at the new ones
        assert await describe(channel, tries=20)
        await channel.close()
        await again.server.stop(None)

    with_server(theirs, work)


def test_a_plain_client_is_told_of_tls_when_its_connection_is_closed(tmp_path: Path) -> None:
    """A server that speaks TLS closes it without a word; once it answered, another reason is likelier."""
    own = made(tmp_path / "own")

    async def work(_: Servicer, listening: Listening) -> None:
        plain = GrpcChannel(f"localhost:{listening.port}")
        with pytest.raises(pserver.UnavailableError, match=r"speak TLS.*--tls-cert, --tls-key"):
            await describe(plain)
        plain.connection.has_answered = True
        with pytest.raises(pserver.UnavailableError) as caught:
            await describe(plain)
        assert "TLS" not in str(caught.value)
        shown = GrpcChannel(f"localhost:{listening.port}", credentials(own))
        assert await describe(shown)
        assert shown.connection.hint == ""
        for channel in (plain, shown):
            await channel.close()

    with_server(own, work)


def test_a_client_sends_its_new_token_when_the_old_one_is_refused(tmp_path: Path) -> None:
    """A token that is renewed on both sides costs no call."""
    own = made(tmp_path / "own")

    async def work(_: Servicer, listening: Listening) -> None:
        shown = credentials(own)
        channel = GrpcChannel(f"localhost:{listening.port}", shown)
        (own / "train.token").write_text("0123456789abcdef-unknown")
        shown.renew_token()
        with pytest.raises(pserver.UnauthenticatedError) as caught:
            await describe(channel)
        assert "0123456789abcdef" not in str(caught.value)
        shutil.copy(own / "read.token", own / "train.token")
        assert await describe(channel)
        await channel.close()

    with_server(own, work)


@pytest.mark.parametrize("text", ["", "two words", '[x]\ntoken = "0123456789abcdef"', "a" * 513])
def test_a_token_file_is_refused_when_it_holds_no_token(tmp_path: Path, text: str) -> None:
    """The error says what must be there, and not what is."""
    path = tmp_path / "token"
    path.write_text(text)

    with pytest.raises(pserver.ConfigError, match="must hold one token and nothing else") as caught:
        read_token(str(path))

    assert not text or text not in str(caught.value)


def test_a_token_file_is_refused_when_it_is_not_there(tmp_path: Path) -> None:
    """The error names flag and file."""
    with pytest.raises(pserver.ConfigError, match=r"--token-file .*none: cannot be read"):
        read_token(str(tmp_path / "none"))
