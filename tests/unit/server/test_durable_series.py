"""The metrics page says how a journal is synced, what a server is, and how its saves went."""

from pathlib import Path

import pytest

from pserver.checkpoint.local import LocalStore
from pserver.errors import CheckpointError
from pserver.server.durable_series import durable_series
from pserver.server.role import STATES
from pserver.server.servicer import Servicer
from tests.unit.server.replay import begin, run, shard
from tests.unit.server.test_recovery import fill, running
from tests.unit.server.test_replay import prepared


def page(servicer: Servicer) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples of each series."""
    series = durable_series(servicer.role, lambda: servicer._saves)
    return {one.name: dict(one.read()) for one in series}


def test_syncs_are_counted_when_replies_wait_for_them(tmp_path: Path) -> None:
    """With fsync always each command was synced before its reply, and took some time."""

    async def check() -> None:
        servicer = shard()
        await begin(servicer, tmp_path, fsync="always")
        await prepared(servicer)
        facts = page(servicer)
        assert facts["journal_syncs_total"][()] >= 1
        assert facts["journal_sync_seconds_total"][()] > 0.0
        assert facts["journal_unsynced_records"] == {(): 0.0}
        assert facts["role"] == {(state,): float(state == "ready") for state in STATES}
        assert facts["checkpoint_age_seconds"] == {(): 0.0}  # there is no place for versions
        servicer.close()

    run(check)


def test_saves_are_told_when_they_were_made_or_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The age begins anew with a version, not with a save that failed, which is counted."""
    with running(tmp_path / "journal", tmp_path / "store") as primary:
        fill(primary)
        saves = primary.servicer._saves
        saves._saved_s -= 1000.0  # as if it had started long ago
        assert page(primary.servicer)["checkpoint_age_seconds"][()] >= 1000.0

        with monkeypatch.context() as patch:

            def refuse(*_: object) -> None:
                raise CheckpointError("no room")

            patch.setattr(LocalStore, "write", refuse)
            with pytest.raises(CheckpointError, match="no room"):
                primary.client.checkpoints.save()
        failed = page(primary.servicer)
        primary.client.checkpoints.save()
        saved = page(primary.servicer)

    assert failed["failed_saves_total"] == saved["failed_saves_total"] == {(): 1.0}
    assert failed["checkpoint_age_seconds"][()] >= 1000.0
    assert saved["checkpoint_age_seconds"][()] < 1000.0
    assert failed["checkpoint_pause_seconds"] == {(): 0.0}
    assert saved["checkpoint_pause_seconds"][()] > 0.0
