"""What ``pserver.server.auth`` promises: who may do what, said once a method, and no token anywhere."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import pserver
from pserver.server.auth import HEADER, Access
from pserver.server.methods import METHODS, Role
from pserver.server.named import BY_SPEC, BY_TABLE, NO_TABLE, PUSHES, tables_of
from pserver.v1 import pserver_pb2 as pb
from pserver.wire.small import build_small
from tests.unit.server.messages import pull_bytes, push_bytes

SECRET = "0123456789abcdef-{}"
FILE = """
[reader]
token = "0123456789abcdef-reader"
role = "read"
[trainer]
token = "0123456789abcdef-trainer"
role = "train"
[boss]
token_sha256 = "{digest}"
role = "admin"
[mixed]
token = "0123456789abcdef-mixed"
tables = {{ ads = "train", users = "read", old = "admin" }}
[but]
token = "0123456789abcdef-but"
role = "admin"
tables = {{ users = "read" }}
"""


class Clock:
    """Seconds that pass when told to."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file with five tokens."""
    found = tmp_path / "tokens.toml"
    digest = hashlib.sha256(SECRET.format("boss").encode()).hexdigest()
    found.write_text(FILE.format(digest=digest))
    found.chmod(0o600)
    return found


def may(access: Access, name: str, method: str, message: bytes = b"") -> bool:
    """Return whether the bearer of a token may make a call."""
    grant = access.grant_of(((HEADER, f"Bearer {SECRET.format(name)}"),))
    assert grant.name == name
    said = ""
    try:
        access.check(grant, method, message)
    except pserver.ForbiddenError as error:
        said = str(error)
    assert not said or f"token {name!r} may not call {method}" in said
    assert SECRET.format(name) not in said
    return not said


@pytest.mark.parametrize("method", METHODS)
def test_each_method_takes_its_role_when_a_token_is_for_all_tables(path: Path, method: str) -> None:
    """A method passes for its role and those above it, and for none below."""
    access = Access(str(path))
    allowed = [may(access, name, method) for name in ("reader", "trainer", "boss")]

    role = METHODS[method].role
    assert allowed == [role <= Role.READ, role <= Role.TRAIN, True]


def test_every_method_has_a_role_and_says_which_tables_it_names() -> None:
    """A new method cannot come without either."""
    known = {*BY_SPEC, *BY_TABLE, *NO_TABLE, *PUSHES, "Pull"}

    assert known == set(METHODS)
    assert all(isinstance(method.role, Role) for method in METHODS.values())


def table_message(method: str, table: str) -> bytes:
    """Return a message of a method that names a table."""
    if method == "Pull":
        return bytes(pull_bytes({table: [1]}, create=False))
    if method in PUSHES:
        return bytes(push_bytes({table: ([1], [1.0])}, counter=1))
    if method == "CreateTable":
        return build_small(pb.CreateTableRequest(spec=pb.TableSpec(name=table)))
    if method == "CreateDense":
        return build_small(pb.CreateDenseRequest(spec=pb.DenseSpec(name=table)))
    return build_small(BY_TABLE[method](table=table))


@pytest.mark.parametrize("method", [name for name in METHODS if name not in NO_TABLE])
def test_a_table_needs_the_role_there_when_roles_differ(path: Path, method: str) -> None:
    """What a token may do on one table, it may not on another; a table that is not named has the rest."""
    access, role = Access(str(path)), METHODS[method].role
    has = {"ads": Role.TRAIN, "users": Role.READ, "old": Role.ADMIN}

    for table, there in has.items():
        message = table_message(method, table)
        assert [name for name, _ in tables_of(method, message)] == [table]
        assert may(access, "mixed", method, message) == (there >= role)
        assert may(access, "but", method, message) == (table != "users" or role is Role.READ)
    assert not may(access, "mixed", method, table_message(method, "other"))
    assert may(access, "but", method, table_message(method, "other"))


def test_a_message_is_refused_whole_when_one_of_its_tables_is(path: Path) -> None:
    """Of two tables of a push, the one without the role is named."""
    access = Access(str(path))
    message = bytes(push_bytes({"ads": ([1], [1.0]), "users": ([1], [1.0])}, counter=1))
    grant = access.grant_of(((HEADER, f"Bearer {SECRET.format('mixed')}"),))

    with pytest.raises(pserver.ForbiddenError, match="'mixed' may not call Push on table 'users'"):
        access.check(grant, "Push", message)


@pytest.mark.parametrize(("method", "passes"), [("Save", False), ("Load", False), ("Join", True)])
def test_admin_of_a_table_is_no_admin_of_the_shard(path: Path, method: str, passes: bool) -> None:
    """What is about all tables takes admin on all; what names none takes the role on any."""
    assert may(Access(str(path)), "mixed", method) is passes


def test_a_pull_that_makes_rows_takes_train(path: Path) -> None:
    """A reader may look at rows, and not make any."""
    access = Access(str(path))
    looks, makes = (bytes(pull_bytes({"ads": [1]}, create=create)) for create in (False, True))

    assert may(access, "reader", "Pull", looks)
    assert not may(access, "reader", "Pull", makes)
    assert may(access, "trainer", "Pull", makes)


@pytest.mark.parametrize(
    "came",
    ["", "Bearer ", "Bearer wrong", "0123456789abcdef-reader", "bearer 0123456789abcdef-reader"],
)
def test_a_call_is_refused_when_its_token_is_none_of_ours(path: Path, came: str) -> None:
    """Neither what came nor what would be right is said."""
    access = Access(str(path))

    with pytest.raises(pserver.UnauthenticatedError) as caught:
        access.grant_of(((HEADER, came),) if came else ())

    assert "0123456789abcdef" not in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_tokens_are_read_again_when_the_file_changes(path: Path) -> None:
    """A new token works and an old one does not, a second later; a broken file changes nothing."""
    clock = Clock()
    access = Access(str(path), now=clock)
    assert may(access, "reader", "Stats")

    path.write_text('[late]\ntoken = "0123456789abcdef-late"\nrole = "read"\n')
    assert may(access, "reader", "Stats")
    clock.now_s = 1.0
    assert may(access, "late", "Stats")
    with pytest.raises(pserver.UnauthenticatedError):
        may(access, "reader", "Stats")

    path.write_text('[late]\ntoken = "0123456789abcdef-secret')
    clock.now_s = 2.0
    with capture_logs() as lines:
        assert may(access, "late", "Stats")
    assert [line["log_level"] for line in lines] == ["warning"]
    assert "0123456789abcdef" not in str(lines)


BAD: list[tuple[str, str]] = [
    ("", "has no tokens"),
    ("x = 1", r"\[x\] must be a table"),
    ('[x]\ntoken = "0123456789abcdef-x', "must be TOML"),
    ('[x]\ntoken = "0123456789abcdef-x"', r"\[x\]: needs role or tables"),
    ('[x]\nrole = "read"', r"\[x\]: needs token or token_sha256"),
    ('[x]\ntoken = "0123456789 abcdef"\nrole = "read"', "visible characters"),
    ('[x]\ntoken = "0123456789"\nrole = "read"', "16 to 512"),
    ('[x]\ntoken = "0123456789abcdef-x"\nrole = "raed"', "did you mean 'read'"),
    ('[x]\ntoken = "0123456789abcdef-x"\ntables = { ads = "raed" }', "tables.ads: unknown role"),
    ('[x]\ntokn = "0123456789abcdef-x"\nrole = "read"', "no key 'tokn'; did you mean 'token'"),
    (
        '[x]\ntoken = "0123456789abcdef-x"\nrole="read"\n[y]\ntoken = "0123456789abcdef-x"\nrole="read"',
        r"\[y\] has the token of another one",
    ),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_file_is_refused_when_it_cannot_work(tmp_path: Path, text: str, said: str) -> None:
    """The error names the entry and what must hold, and shows no token."""
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    path.chmod(0o600)

    with pytest.raises(pserver.ConfigError, match=said) as caught:
        Access(str(path))

    assert "0123456789" not in str(caught.value)


def test_a_file_that_everybody_can_read_is_refused(path: Path) -> None:
    """Tokens that others on the machine know are none."""
    path.chmod(0o644)

    with pytest.raises(pserver.ConfigError, match="every user of this machine can read it"):
        Access(str(path))


def test_nothing_is_compared_twice_when_a_token_comes_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call of a token costs a comparison with each of ours, the others a look-up."""
    counted = count_calls(monkeypatch)
    access = Access(str(path))
    for _ in range(3):
        assert may(access, "trainer", "Push")

    assert counted() == 5


def count_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the comparisons of digests."""
    import hmac

    calls: list[int] = []
    compare = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        calls.append(1)
        return compare(a, b)

    monkeypatch.setattr("pserver.server.auth.hmac.compare_digest", counting)
    return lambda: len(calls)
