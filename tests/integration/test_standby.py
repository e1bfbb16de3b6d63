"""A server process that follows another one, and takes its place under clients that push."""

import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import pserver
from pserver.cli.main import main
from pserver.client.connect import stats_of_each
from pserver.deadline import Deadline
from pserver.journal.place import read_place
from pserver.v1 import pserver_pb2 as pb
from tests.integration import forked
from tests.integration.families import NONE
from tests.integration.proxy import Proxy
from tests.integration.servers import WAIT_S, servers

pytestmark = pytest.mark.integration

KEYS = np.arange(50, dtype=np.uint64)
ONES = np.ones(100, np.float32)
SPEC = pserver.TableSpec(name="t", dim=2, optimizer="sgd:lr=1", initializer="zeros")


def promote(endpoint: str) -> str:
    """Run ``pserver promote`` and return what it says."""
    done = forked.run(main, "promote", endpoint, "--timeout", "2", timeout=WAIT_S)
    done.check_returncode()
    return done.stdout


def wait_applied(endpoint: str, pushes: int) -> None:
    """Wait until a standby has applied pushes, however they were acknowledged."""
    limit = Deadline.after(WAIT_S)
    while not limit.is_over:
        (stats,) = stats_of_each([endpoint], settings=pserver.AccessSettings(), timeout_s=WAIT_S)
        if isinstance(stats, pb.StatsReply) and stats.pushes_applied >= pushes:
            return
    raise AssertionError(f"{endpoint} has not applied {pushes} pushes")


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "replaced"])
def test_every_push_counts_once_when_a_standby_takes_over(tmp_path: Path, is_killed: bool) -> None:
    """Two clients push all the while; their server is killed, or replaced: no push is lost or doubled."""
    settings = pserver.ClientSettings(timeout_s=2 * WAIT_S, try_timeout_s=5.0)
    counts, is_over, enough = [0, 0], threading.Event(), threading.Semaphore(0)
    with servers() as start:
        flags = ("--acknowledge", "standby") if is_killed else ()
        one = start("--journal", str(tmp_path / "one"), *flags).wait_ready()
        two = start("--journal", str(tmp_path / "two"), "--standby-of", one.endpoint).wait_ready()
        listed = f"{one.endpoint}|{two.endpoint}"

        def push(trainer: int) -> None:
            with pserver.connect(listed, settings=settings, connect_s=WAIT_S) as client:
                while not is_over.is_set():
                    client.start_push({"t": (KEYS, ONES, NONE)}).result()
                    counts[trainer] += 1
                    enough.release()

        with pserver.connect(listed, settings=settings, connect_s=WAIT_S) as client:
            client.create_table(SPEC)
        threads = [threading.Thread(target=push, args=(i,), daemon=True) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for _ in range(40):
            assert enough.acquire(timeout=WAIT_S)
        if is_killed:
            one.send(signal.SIGKILL)
        said = promote(two.endpoint)
        before = sum(counts)
        for _ in range(40):
            assert enough.acquire(timeout=WAIT_S)
        is_over.set()
        for thread in threads:
            thread.join(WAIT_S)
        with pserver.connect(two.endpoint, settings=settings, connect_s=WAIT_S) as client:
            weights = client.peek("t", KEYS)

    assert weights.tolist() == [[-float(sum(counts))] * 2] * KEYS.size
    assert sum(counts) > before
    assert ("did not answer" in said) == is_killed
    assert ("nothing is lost" in said) != is_killed


def test_standby_that_waits_for_its_server_ends_when_told(tmp_path: Path) -> None:
    """SIGTERM ends a standby whose server never answered, with status 0; nothing was begun."""
    with servers() as start:
        standby = start("--journal", str(tmp_path / "two"), "--standby-of", "127.0.0.1:1")
        standby.wait_line("does not answer yet")
        standby.send(signal.SIGTERM)
        status, said = standby.wait_exit()

    assert status == 0
    assert "ended before it served" in said
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize("acknowledge", ["standby", pytest.param("local", marks=pytest.mark.slow)])
def test_server_that_was_cut_off_takes_nothing_when_it_comes_back(
    tmp_path: Path, acknowledge: str
) -> None:
    """SIGSTOP, promote, SIGCONT: what is pushed through clients of before is in the new server, or refused."""
    settings = pserver.ClientSettings(timeout_s=2 * WAIT_S, try_timeout_s=5.0)
    brief = pserver.ClientSettings(timeout_s=4.0, try_timeout_s=4.0)
    with servers() as start:
        one = start("--journal", str(tmp_path / "one"), "--acknowledge", acknowledge).wait_ready()
        flags = ("--journal", str(tmp_path / "two"), "--standby-of", one.endpoint)
        two = start(*flags).wait_ready()
        both = pserver.connect(f"{one.endpoint}|{two.endpoint}", settings=settings)
        old = pserver.connect(one.endpoint, settings=brief)
        with both, old:
            both.create_table(SPEC)
            both.start_push({"t": (KEYS, ONES, NONE)}).result()
            wait_applied(two.endpoint, 1)
            one.send(signal.SIGSTOP)
            lying = both.start_push(
                {"t": (KEYS, ONES, NONE)}
            )  # in the socket of a server that stands still
            said = promote(two.endpoint)
            one.send(signal.SIGCONT)
            with pytest.raises(pserver.PserverError, match=r"term 2|does not hear of its standby"):
                old.start_push({"t": (KEYS, ONES, NONE)}).result()
            lying.result()
            both.start_push({"t": (KEYS, ONES, NONE)}).result()
        with pytest.raises(pserver.PserverError, match="one with term 2 took its place"):
            pserver.connect(one.endpoint, settings=brief, connect_s=1.0)
        two.send(signal.SIGKILL)
        two.wait_exit()
        again = start("--bind", two.endpoint, *flags).wait_ready()
        with pserver.connect(again.endpoint, settings=settings, connect_s=WAIT_S) as client:
            weights = client.peek("t", KEYS)

    assert "with term 2" in said
    assert weights.tolist() == [[-3.0, -3.0]] * KEYS.size


@pytest.mark.slow
def test_one_server_of_three_takes_pushes_when_a_silent_standby_is_promoted(tmp_path: Path) -> None:
    """A standby that its server cannot hear of lets no other one take its part, and is promoted all the same."""
    settings = pserver.ClientSettings(timeout_s=2 * WAIT_S, try_timeout_s=5.0)
    brief = pserver.ClientSettings(timeout_s=2.0, try_timeout_s=2.0)
    with servers() as start:
        one = start("--journal", str(tmp_path / "one")).wait_ready()
        with Proxy(one.endpoint) as way:
            flags = ("--journal", str(tmp_path / "two"), "--standby-of", way.endpoint)
            two = start(*flags).wait_ready()
            with pserver.connect(one.endpoint, settings=settings, connect_s=WAIT_S) as client:
                client.create_table(SPEC)
                client.start_push({"t": (KEYS, ONES, NONE)}).result()
            wait_applied(two.endpoint, 1)
            way.shut()
            flags = ("--journal", str(tmp_path / "three"), "--standby-of", one.endpoint)
            three = start(*flags).wait_ready()
            three.wait_line("this server has another standby")
            said = promote(two.endpoint)  # which waits until the promise is over
            for endpoint in (one.endpoint, three.endpoint):
                with pytest.raises(
                    pserver.PserverError, match=r"does not hear of|is the standby of"
                ):
                    pserver.connect(endpoint, settings=brief, connect_s=2.0)
            with pserver.connect(two.endpoint, settings=settings, connect_s=WAIT_S) as client:
                client.start_push({"t": (KEYS, ONES, NONE)}).result()
            with pytest.raises(subprocess.CalledProcessError):
                promote(three.endpoint)
            way.open()
            two.wait_line("told the old server")
            with pserver.connect(two.endpoint, settings=settings, connect_s=WAIT_S) as client:
                client.start_push({"t": (KEYS, ONES, NONE)}).result()
                weights = client.peek("t", KEYS)
            with pytest.raises(pserver.PserverError, match="one with term 2 took its place"):
                pserver.connect(one.endpoint, settings=brief, connect_s=2.0)

    assert "with term 2" in said
    assert weights.tolist() == [[-3.0, -3.0]] * KEYS.size


def test_trainers_promote_a_standby_when_they_were_asked_to(tmp_path: Path) -> None:
    """With ``promote_after_s`` a client that nobody answers goes on with the standby; without, none is asked."""
    settings = pserver.ClientSettings(timeout_s=2 * WAIT_S, try_timeout_s=5.0, promote_after_s=1.0)
    with servers() as start:
        one = start("--journal", str(tmp_path / "one"), "--acknowledge", "standby").wait_ready()
        two = start("--journal", str(tmp_path / "two"), "--standby-of", one.endpoint).wait_ready()
        listed = f"{one.endpoint}|{two.endpoint}"
        with pserver.connect(listed, settings=settings) as client:
            client.create_table(SPEC)
            client.start_push({"t": (KEYS, ONES, NONE)}).result()
            one.send(signal.SIGKILL)
            with pytest.raises(pserver.UnavailableError, match=r"until `pserver promote`|refused"):
                pserver.connect(listed, connect_s=2.0)
            client.start_push({"t": (KEYS, ONES, NONE)}).result()
            weights = client.peek("t", KEYS)

    assert weights.tolist() == [[-2.0, -2.0]] * KEYS.size


@pytest.mark.slow
def test_standby_begins_with_nothing_when_its_server_dropped_records(tmp_path: Path) -> None:
    """80 MiB of pushes, a save that drops the first segment: the standby copies the version, and takes over."""
    settings = pserver.ClientSettings(timeout_s=4 * WAIT_S)
    keys = np.arange(16_384, dtype=np.uint64)
    ones = np.ones(keys.size * 256, np.float32)
    wide = pserver.TableSpec(name="t", dim=256, optimizer="sgd:lr=1", initializer="zeros")
    with servers() as start:
        kept = ("--checkpoint-dir", str(tmp_path / "ckpt"))
        one = start("--journal", str(tmp_path / "one"), *kept).wait_ready()
        with pserver.connect(one.endpoint, settings=settings, connect_s=WAIT_S) as client:
            client.create_table(wide)
            for _ in range(5):
                client.start_push({"t": (keys, ones, NONE)}).result()
            client.checkpoints.save()
            client.start_push({"t": (keys, ones, NONE)}).result()
        assert not (tmp_path / "one" / f"{1:020d}.journal").exists()
        flags = ("--journal", str(tmp_path / "two"), "--standby-of", one.endpoint)
        two = start(*flags).wait_ready()
        two.send(signal.SIGKILL)
        two.wait_exit()
        again = start(*flags).wait_ready()
        said = promote(again.endpoint)
        with pserver.connect(again.endpoint, settings=settings, connect_s=WAIT_S) as client:
            weights = client.peek("t", keys[:100])

    assert "nothing is lost" in said
    assert (weights == -6.0).all()


def test_server_goes_on_when_its_standby_is_told_to_end(tmp_path: Path) -> None:
    """SIGTERM to the standby: pushes go on beyond its promise, and it follows again when it is back."""
    settings = pserver.ClientSettings(timeout_s=2 * WAIT_S)
    with servers() as start:
        one = start("--journal", str(tmp_path / "one")).wait_ready()
        flags = ("--journal", str(tmp_path / "two"), "--standby-of", one.endpoint)
        two = start(*flags).wait_ready()
        with pserver.connect(one.endpoint, settings=settings, connect_s=WAIT_S) as client:
            client.create_table(SPEC)
            client.start_push({"t": (KEYS, ONES, NONE)}).result()
            wait_applied(two.endpoint, 1)
            two.send(signal.SIGTERM)
            assert two.wait_exit()[0] == 0
            left = read_place(tmp_path / "one")
            client.start_push({"t": (KEYS, ONES, NONE)}).result()
            again = start(*flags).wait_ready()
            wait_applied(again.endpoint, 1)
            client.start_push({"t": (KEYS, ONES, NONE)}).result()
        said = promote(again.endpoint)
        with pserver.connect(again.endpoint, settings=settings, connect_s=WAIT_S) as client:
            weights = client.peek("t", KEYS)

    assert not left.is_followed
    assert "nothing is lost" in said
    assert weights.tolist() == [[-3.0, -3.0]] * KEYS.size
