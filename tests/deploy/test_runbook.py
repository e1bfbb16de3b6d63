"""The runbook's commands are commands that there are, and its table is what ``pserver plan`` says."""

import re
import shlex

import pytest

from pserver.cli.main import make_parser
from pserver.plan import make_plan
from pserver.server.app import SECOND_SIGNAL_EXIT
from tests.deploy.manifests import DEPLOY

TEXT = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
COMMANDS = sorted(
    {
        " ".join(text.split())
        for text in re.findall(r"`(pserver [^`]+)`", TEXT)
        if "..." not in text and len(text.split()) > 2
    }
)
SIZES = re.findall(
    r"^\| (1e\d+) \| (\d+) \| (\d+) \| ([\d.]+) \| ([\d.]+) GiB \| ([\d.,]+) GiB \|", TEXT, re.M
)


@pytest.mark.parametrize("command", COMMANDS)
def test_command_is_accepted(command: str) -> None:
    """Each command parses; a flag that is gone or misspelt is an error."""
    make_parser().parse_args(shlex.split(command.replace("$PS", "127.0.0.1:6170"))[1:])


def test_commands_are_found() -> None:
    """The test above looks at what the runbook leans on."""
    assert {command.split()[1] for command in COMMANDS} >= {"serve", "status", "checkpoint", "plan"}


@pytest.mark.parametrize(("rows", "dim", "shards", "row", "shard", "all_shards"), SIZES)
def test_size_is_what_plan_says(
    rows: str, dim: str, shards: str, row: str, shard: str, all_shards: str
) -> None:
    """Each line of the table is the plan's, digit for digit."""
    plan = make_plan(
        rows=int(float(rows)),
        dim=int(dim),
        optimizer="adagrad",
        num_shards=int(shards),
        capacity_max=2**31 - 1,
    )

    assert f"{plan.row_bytes:,.1f}" == row
    assert f"{plan.shard_bytes / 2**30:,.1f}" == shard
    assert f"{plan.total_bytes / 2**30:,.1f}" == all_shards


def test_the_table_of_sizes_is_found() -> None:
    """The test above looks at the whole table."""
    assert len(SIZES) == 4


def test_statuses_are_the_products() -> None:
    """The table of exit statuses has each status that the product ends with."""
    from trainer.cli import main as cli

    listed = {int(status) for status in re.findall(r"^\| (\d+) \| ", TEXT, re.M)}

    assert listed >= {0, cli.FAILURE_EXIT, cli.SIGTERM_EXIT, SECOND_SIGNAL_EXIT}
    assert "`podFailurePolicy` fails the job" in next(
        line for line in TEXT.splitlines() if line.startswith("| 2 |")
    )
