"""Slow links between namespaces: left out with a reason where they are not permitted."""

from pathlib import Path

import pytest

from bench import collective, links


def test_without_the_commands_the_slow_link_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither ``ip`` nor ``tc`` is found: the other figures stay."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(collective, "run_ranks", lambda *_, **__: {"fused_over_unfused": 2.0})

    with pytest.raises(links.RefusedError, match="ip"), links.nodes(links.RATE):
        pass
    found = collective.run()

    assert found["fused_over_unfused"] == 2.0
    assert str(found["slow_link"]).startswith("left out: no namespaces or token buckets here")
