"""What ``import pserver`` gives, and what it must not bring along."""

import subprocess
import sys

import pserver
from pserver import errors

WAIT_S = 60.0


def modules_after(statement: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after a statement."""
    code = f"{statement}; import sys; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    return set(done.stdout.split())


def test_public_names_resolve() -> None:
    """Every name in ``__all__`` is there, and a star import brings just those."""
    space: dict[str, object] = {}
    exec("from pserver import *", space)  # what a user types

    assert set(pserver.__all__) == set(space) - {"__builtins__"}
    assert all(getattr(pserver, name) is space[name] for name in pserver.__all__)


def test_every_error_is_public() -> None:
    """Each class of the error tree can be caught by its public name."""

    def walk(kind: type[Exception]) -> set[str]:
        return {kind.__name__}.union(*map(walk, kind.__subclasses__()))

    ours = {name for name in walk(errors.PserverError) if hasattr(errors, name)}

    assert ours <= set(pserver.__all__)


def test_torch_is_not_imported() -> None:
    """Servers and load generators run where torch is not installed, and start without it."""
    modules = modules_after("import pserver, pserver.cli.main, pserver.server.app")

    assert "torch" not in modules
    assert {"grpc", "numba", "pserver"} <= modules


def test_example_of_the_package_runs() -> None:
    """An embedded cluster is up, trained and gone in a few lines."""
    with pserver.embedded(2) as client:
        client.create_table(pserver.TableSpec(name="ads", dim=4, optimizer="sgd:lr=1"))
        before = client.pull("ads", [1, 2, 1])
        client.push("ads", [1, 2, 1], before)

        assert (client.pull("ads", [2]) == 0.0).all()
        assert (client.pull("ads", [1]) == -before[0]).all()
