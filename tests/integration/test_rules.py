"""A user's optimizer from a file, through a real server and a real trainer."""

import json
import subprocess
from pathlib import Path

from tests.integration import forked
from tests.integration.servers import Start, start_cluster
from trainer.cli.main import main

RULE = """
class Half:
    formula = "w -= lr * g / 2"
    options = {"lr": 0.1}
    state = "none"

    @staticmethod
    def state_floats(dim):
        return 0

    @staticmethod
    def kernel(slab, stride, dim, row_ids, grads, options, table):
        for i in range(row_ids.size):
            for k in range(dim):
                slab[row_ids[i] * stride + k] -= options[0] * grads[i * dim + k] / 2
"""


def _train(endpoint: str, *words: str) -> subprocess.CompletedProcess[str]:
    common = ("--ps", endpoint, "--rows", "2048", "--batch-size", "512", "--eval-last", "512")
    return forked.run(main, "run", *common, "--device", "cpu", "--json", *words, timeout=100)


def test_a_rule_from_a_file_trains_when_server_and_trainer_load_it(
    start: Start, tmp_path: Path
) -> None:
    """With --rule on both sides a user's own optimizer is one like any other."""
    file = tmp_path / "my_rule.py"
    file.write_text(RULE, encoding="utf-8")
    (server,) = start_cluster(start, 1, "--rule", f"{file}:Half")

    done = _train(server.endpoint, "--rule", f"{file}:Half", "--optimizer", "Half:lr=0.5")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["steps"] == 4


def test_a_rule_is_refused_when_only_the_trainer_has_it(start: Start, tmp_path: Path) -> None:
    """A server without the rule says which ones it has; nothing is trained."""
    file = tmp_path / "my_rule.py"
    file.write_text(RULE, encoding="utf-8")
    (server,) = start_cluster(start, 1)

    done = _train(server.endpoint, "--rule", f"{file}:Half", "--optimizer", "Half:lr=0.5")

    assert done.returncode == 2
    assert "unknown rule 'Half'" in done.stderr
    assert "adagrad" in done.stderr
