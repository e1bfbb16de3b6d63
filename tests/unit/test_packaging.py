"""What pyproject says of the packages is what the tree has."""

import re
import tomllib
from pathlib import Path

from pserver.v1 import pserver_pb2 as pb

_TOP = ("pserver", "trainer", "collective")


_ROOT = Path(__file__).resolve().parents[2]


def test_every_package_is_listed_when_it_has_modules() -> None:
    """A folder of the product that holds Python files is a listed package, and no other is."""
    config = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(config["tool"]["setuptools"]["packages"])

    found = {
        ".".join(path.parent.relative_to(_ROOT).parts)
        for top in _TOP
        for path in (_ROOT / top).rglob("*.py")
    }

    assert listed == found


def test_every_dependency_is_pinned_when_it_is_declared() -> None:
    """constraints.txt pins each package that pyproject names."""
    config = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = config["project"]["optional-dependencies"].values()
    declared = [*config["project"]["dependencies"], *(name for group in groups for name in group)]
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (_ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }

    names = {text.split(">")[0].split("[")[0].split("=")[0].strip().lower() for text in declared}
    missing = {name.replace("_", "-") for name in names} - pinned - {"pserver"}

    assert not missing


def test_k1_generated_code_is_no_newer_than_the_oldest_protobuf_allowed() -> None:
    """Whatever protobuf pip may choose loads what was generated, and a message makes the way there and back."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (bound,) = [d for d in project["dependencies"] if d.startswith("protobuf")]
    generated = (_ROOT / "pserver" / "v1" / "pserver_pb2.py").read_text(encoding="utf-8")
    made_for = re.search(r"^# Protobuf Python Version: (\S+)$", generated, re.M)

    assert made_for is not None
    assert bound == f"protobuf>={made_for[1]}"
    assert "GRPC_GENERATED_VERSION" not in generated  # there are no stubs that ask for a grpcio
    sent = pb.DescribeReply(shard_index=1, state="ready")
    assert pb.DescribeReply.FromString(sent.SerializeToString()) == sent
