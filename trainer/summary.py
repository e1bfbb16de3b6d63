"""Every figure of a run, for ``--json`` and for a person.

Rooms before and after: ``job`` fills it; ``cli`` prints it.
"""

import dataclasses
import math
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Summary:
    """Every figure of a run; ``trainer run --json`` prints it as one object.

    Attributes:
        model, data, device, shards: what ran on what.
        steps, samples: trained.
        seconds: of training, without start-up and scoring.
        samples_per_s: trained samples a second.
        comm_share: share of the training time that the training thread waited for pulls, or
            split and queued pulls and pushes.
        train_auc: of the predictions made during training, each before its row was trained on.
        auc, log_loss: on the held-out rows; None if there are none.
        auc_ceiling: the best possible AUC on those rows, where it is known.
        eval_samples: held-out rows.
        rows: rows of the table over all shards.
        bytes_per_row: weights, state, epoch and index; None while there are no rows.
        retries: requests that had to be sent again.
        bad_lines: lines skipped in the last pass over the training rows, and in the held-out ones.
        first_bad_lines: the first five of those, as file:line and reason.
    """

    model: str
    data: str
    device: str
    shards: int
    steps: int
    samples: int
    seconds: float
    samples_per_s: float
    comm_share: float
    train_auc: float | None
    auc: float | None
    log_loss: float | None
    auc_ceiling: float | None
    eval_samples: int
    rows: int
    bytes_per_row: float | None
    retries: int
    bad_lines: int
    first_bad_lines: list[str]

    def as_dict(self) -> dict[str, object]:
        """Return the figures by name, all of them representable in JSON."""
        return dataclasses.asdict(self)


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold, or None."""
    return value if value is not None and math.isfinite(value) else None


def summary_table(summary: Summary) -> Table:
    """Return the figures for a person."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("model", f"{summary.model} on {summary.data}")
    table.add_row("AUC", _auc_text(summary))
    if summary.log_loss is not None:
        table.add_row("log loss", f"{summary.log_loss:.4f} on {summary.eval_samples:,} rows")
    table.add_row("samples/s", f"{summary.samples_per_s:,.0f} on {summary.device}")
    table.add_row("communication", f"{100.0 * summary.comm_share:.1f} % of the training time")
    table.add_row(
        "trained", f"{summary.samples:,} rows, {summary.steps} steps, {summary.seconds:.1f} s"
    )
    bytes_text = (
        "" if summary.bytes_per_row is None else f", {summary.bytes_per_row:.0f} bytes each"
    )
    table.add_row("table rows", f"{summary.rows:,} on {summary.shards} shards{bytes_text}")
    if summary.retries:
        table.add_row("retries", str(summary.retries))
    if summary.bad_lines:
        shown = "\n".join(summary.first_bad_lines)
        table.add_row("bad lines", f"{summary.bad_lines} skipped\n{shown}")
    return table


def _auc_text(summary: Summary) -> str:
    """Return the AUC beside the best that is possible, as far as they are known."""
    if summary.auc is None:
        text = "no held-out rows (--eval-data or --eval-last)"
        return text if summary.train_auc is None else f"{summary.train_auc:.4f} in training; {text}"
    if summary.auc_ceiling is None:
        return f"{summary.auc:.4f} on held-out rows"
    return f"{summary.auc:.4f} on held-out rows; best possible {summary.auc_ceiling:.4f}"
