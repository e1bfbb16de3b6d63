"""A server that other machines can reach: who gets what, as the table in ARCHITECTURE.md says."""

import http.client
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

import pserver
from pserver.client.connect import connect
from pserver.transport import SERVICE
from pserver.v1 import pserver_pb2 as pb
from tests.certificates import files, made, token
from tests.integration.servers import WAIT_S, Server, Start, servers
from tests.unit.server.messages import pull_bytes, push_bytes

ROOT = Path(__file__).resolve().parent.parent.parent
CASES = ("no TLS", "wrong CA", "expired certificate", "no token", "wrong role")
MESSAGES = {
    "pull": ("Pull", bytes(pull_bytes({"ads": [1, 2]}))),
    "push": ("Push", bytes(push_bytes({"ads": ([1, 2], [1.0, 1.0])}, counter=1))),
    "admin": ("Clear", pb.TableRequest(table="ads", request=1).SerializeToString()),
}
OTHERS = '\n[other]\ntoken = "of-another-table-only"\ntables = { users = "admin" }\n'


def documented() -> dict[tuple[str, str], str]:
    """Return what the table says, by case and what was tried."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head = next(row for row in cells if row[0] == "shown")
    return {
        (row[0], what): cell
        for row in cells
        if row[0] in CASES
        for what, cell in zip(head[1:], row[1:], strict=True)
    }


@dataclass(frozen=True)
class Guarded:
    """A server with TLS and tokens, the folder of its files, and that of another authority."""

    server: Server
    own: Path
    other: Path
    expired: Path

    @property
    def endpoint(self) -> str:
        """Return where it listens, by a name that its certificate has."""
        return "localhost:" + self.server.endpoint.rsplit(":", 1)[1]

    @property
    def metrics_port(self) -> int:
        """Return the port of the metrics page."""
        line = next(line for line in self.server.log if "metrics page ready" in line)
        found = re.search(r"address='[^']*:(\d+)'", line)
        assert found is not None
        return int(found[1])


def flags(settings: dict[str, str]) -> list[str]:
    """Return settings as flags."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


@pytest.fixture(scope="module")
def web_port(guarded: Guarded) -> Iterator[int]:
    """Return the port of a page that shows the server, and listens on every address too."""
    given = {**files(guarded.own, "server"), "token_file": str(guarded.own / "read.token")}
    tokens = f"--page-token-file={guarded.own / 'tokens.toml'}"
    command = [
        sys.executable,
        "-m",
        "pserver",
        "web",
        f"--ps={guarded.endpoint}",
        "--bind=0.0.0.0:0",
    ]
    child = subprocess.Popen([*command, *flags(given), tokens], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        found = re.search(r"page ready on https://\S+:(\d+)/", child.stdout.readline())
        assert found is not None
        yield int(found[1])
    finally:
        child.terminate()
        child.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Return a server that listens on every address, with a table."""
    own, other = (made(tmp_path_factory.mktemp(name)) for name in ("own", "other"))
    expired = tmp_path_factory.mktemp("expired")
    for name in ("ca.pem", "ca-key.pem"):
        (expired / name).write_bytes((own / name).read_bytes())
    made(expired, days=-1)
    tokens = own / "tokens.toml"
    tokens.write_text(tokens.read_text() + OTHERS)
    with servers() as start:
        given = {**files(own, "server"), "token_file": str(tokens)}
        binds = ("--bind", "0.0.0.0:0", "--metrics-bind", "0.0.0.0:0")
        found = Guarded(start(*binds, *flags(given)).wait_ready(), own, other, expired)
        with client(found, "train") as trainer:
            trainer.create_table(pserver.TableSpec(name="ads", dim=1, optimizer="sgd:lr=1"))
            trainer.push("ads", [7], [[1.0]])
        yield found


def client(guarded: Guarded, role: str) -> pserver.Client:
    """Return a client with the certificate and token of a role."""
    shown = {**files(guarded.own), "token_file": str(guarded.own / f"{role}.token")}
    settings = pserver.ClientSettings.make({"timeout_s": WAIT_S, **shown}, origins={})
    return connect(guarded.endpoint, settings=settings, connect_s=WAIT_S)


def shown_in(guarded: Guarded, case: str) -> tuple[Path | None, str]:
    """Return the folder of the certificate that is shown, and the token."""
    folders: dict[str, Path | None] = {
        "no TLS": None,
        "wrong CA": guarded.other,
        "expired certificate": guarded.expired,
    }
    tokens = {"no token": "", "wrong role": "of-another-table-only"}
    admin = token(guarded.own, "admin")
    return folders.get(case, guarded.own), tokens.get(case, admin)


def try_call(guarded: Guarded, case: str, what: str) -> str:
    """Return the code of a call."""
    method, message = MESSAGES[what]
    folder, secret = shown_in(guarded, case)
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    if folder is None:
        channel = grpc.insecure_channel(guarded.endpoint, options=options)
    else:
        ca, key, cert = (
            path.read_bytes()
            for path in (guarded.own / "ca.pem", folder / "client-key.pem", folder / "client.pem")
        )
        channel = grpc.secure_channel(
            guarded.endpoint, grpc.ssl_channel_credentials(ca, key, cert), options=options
        )
    with channel:
        metadata = (("authorization", f"Bearer {secret}"),) if secret else ()
        try:
            channel.unary_unary(f"/{SERVICE}/{method}")(message, timeout=WAIT_S, metadata=metadata)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "served"


def try_page(guarded: Guarded, case: str, *, port: int, path: str, fact: str) -> str:
    """Return what a page answers; a fact is on it if it is served, and else nothing of it."""
    folder, secret = shown_in(guarded, case)
    if folder is None:
        page = http.client.HTTPConnection("localhost", port, timeout=WAIT_S)
    else:
        context = ssl.create_default_context(cafile=guarded.own / "ca.pem")
        context.load_cert_chain(folder / "client.pem", folder / "client-key.pem")
        page = http.client.HTTPSConnection("localhost", port, context=context, timeout=WAIT_S)
    try:
        page.request("GET", path, headers={"Authorization": f"Bearer {secret}"} if secret else {})
        reply = page.getresponse()
        text = reply.read().decode()
    except (OSError, http.client.HTTPException):
        return "no connection"
    finally:
        page.close()
    assert (fact in text) == (reply.status == 200)
    return "served" if reply.status == 200 else str(reply.status)


@pytest.mark.parametrize("what", ["pull", "push", "admin", "metrics", "web"])
@pytest.mark.parametrize("case", CASES)
def test_who_shows_the_wrong_thing_gets_what_the_table_says(
    guarded: Guarded, web_port: int, case: str, what: str
) -> None:
    """What happens stands in ARCHITECTURE.md, and what was refused changed nothing."""
    if what == "metrics":
        port, path, fact = guarded.metrics_port, "/metrics", "pserver_rows"
        happened = try_page(guarded, case, port=port, path=path, fact=fact)
    elif what == "web":
        happened = try_page(guarded, case, port=web_port, path="/facts", fact='"began"')
    else:
        happened = try_call(guarded, case, what)

    assert documented()[case, what] == happened
    with client(guarded, "read") as reader:
        assert [table.rows for shard in reader.stats() for table in shard.tables] == [1]


def test_each_role_does_what_it_may_over_tls(guarded: Guarded) -> None:
    """A reader reads and makes no rows, a trainer trains, an admin clears; errors keep their class."""
    with client(guarded, "read") as reader:
        assert reader.peek("ads", [1, 7]).shape == (2, 1)
        with pytest.raises(pserver.ForbiddenError, match="'read' may not call Pull on table 'ads'"):
            reader.pull("ads", [1])
        with pytest.raises(pserver.ForbiddenError, match="takes the role train"):
            reader.push("ads", [7], [[1.0]])
    with client(guarded, "train") as trainer:
        trainer.push("ads", [7], [[1.0]])
        with pytest.raises(pserver.ForbiddenError, match="takes the role admin"):
            trainer.lifecycle.clear("ads")


def test_admin_calls_are_written_down_and_no_token_is(start: Start, tmp_path: Path) -> None:
    """A line says who, by name and certificate, from where, what, and how it ended."""
    own = made(tmp_path)
    given = {**files(own, "server"), "token_file": str(own / "tokens.toml")}
    server = start(*flags(given)).wait_ready()
    guarded = Guarded(server, own, own, own)
    with client(guarded, "admin") as admin:
        admin.create_table(pserver.TableSpec(name="ads", dim=1))
        admin.lifecycle.clear("ads")
    with client(guarded, "read") as reader, pytest.raises(pserver.ForbiddenError):
        reader.lifecycle.drop("ads")
    server.send(signal.SIGTERM)  # drained: a line may come after the answer
    _, log = server.wait_exit()

    lines = [line for line in log.splitlines() if "admin call" in line]
    told = [dict(re.findall(r"(\w+)='([^']*)'", line)) for line in lines]
    assert [(t["who"], t["method"], t["table"], t["outcome"]) for t in told] == [
        ("admin", "Clear", "ads", "OK"),
        ("read", "Drop", "ads", "ForbiddenError"),
    ]
    assert all(t["certificate"] == "client" for t in told)
    assert all(re.fullmatch(r"ipv[46]:\S+:\d+", t["peer"]) for t in told)
    assert not [role for role in ("read", "train", "admin") if token(own, role) in log]


@pytest.mark.parametrize("flag", ["--bind", "--metrics-bind"])
def test_a_bind_beyond_this_machine_is_refused_when_it_is_open(start: Start, flag: str) -> None:
    """The error shows the commands that make certificates and use them, and the way round."""
    status, text = start("--bind", "127.0.0.1:0", flag, "0.0.0.0:0").wait_exit()

    assert status == pserver.USAGE_EXIT
    assert f"{flag} 0.0.0.0:0: other machines can reach this" in text
    assert "pserver certs make certs --host" in text
    assert f"pserver serve {flag} 0.0.0.0:0 --tls-cert certs/server.pem" in text
    assert "--insecure-bind" in text


def test_an_open_bind_works_when_it_is_said_to_be_meant(start: Start) -> None:
    """With --insecure-bind neither certificates nor tokens are asked for."""
    server = start("--bind", "0.0.0.0:0", "--insecure-bind").wait_ready()
    with connect("localhost:" + server.endpoint.rsplit(":", 1)[1], connect_s=WAIT_S) as anybody:
        assert anybody.num_shards == 1


def test_the_metrics_port_serves_nothing_else(start: Start) -> None:
    """Other paths are not found, and other verbs are refused."""
    server = start("--metrics-bind", "127.0.0.1:0").wait_ready()
    port = Guarded(server, Path(), Path(), Path()).metrics_port
    found = {}
    for verb, path in (
        ("GET", "/"),
        ("GET", "/metrics/x"),
        ("POST", "/metrics"),
        ("GET", "/metrics"),
    ):
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        page.request(verb, path)
        found[verb, path] = page.getresponse().status
        page.close()

    assert list(found.values()) == [404, 404, 405, 200]
