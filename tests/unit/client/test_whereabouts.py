"""What ``pserver.client.whereabouts`` promises: an endpoint is itself, or what a file holds now."""

from pathlib import Path

import pytest

from pserver.client.whereabouts import address_of


def test_host_and_port_stand_for_themselves() -> None:
    """gRPC resolves names, also with a resolver of its own before them."""
    for endpoint in ("10.0.0.7:6170", "pserver-0.pserver:6170", "dns://10.0.0.1/pserver-0:6170"):
        assert address_of(endpoint) == endpoint


def test_a_file_is_read_each_time(tmp_path: Path) -> None:
    """What it holds counts when somebody asks, spaces around it do not."""
    file = tmp_path / "shard 0"

    found = [address_of(f"file:{file}")]
    for text in ("a:1\n", " b:2 "):
        file.write_text(text, encoding="utf-8")
        found.append(address_of(f"file:{file}"))

    assert found == ["", "a:1", "b:2"]


@pytest.mark.parametrize("held", [b"", b"nothing", b"a:b", b"\xff:1", b"a:1 " + b"x" * 600])
def test_a_file_with_anything_else_names_no_server(tmp_path: Path, held: bytes) -> None:
    """Half a line, or another file by mistake, is no address."""
    file = tmp_path / "shard-0"
    file.write_bytes(held)

    assert address_of(f"file:{file}") == ""
    assert address_of(f"file:{tmp_path}") == ""
