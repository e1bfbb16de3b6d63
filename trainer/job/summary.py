"""Every figure of a run, for ``--json`` and for a person.

Rooms before and after: ``job`` fills it; ``cli`` prints it.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from trainer.dataset import SHOWN_BAD_LINES_MAX
from trainer.dense.memory import memory_text
from trainer.job.lost import lost_texts, merged_lost
from trainer.job.watch import Facts, merged, warnings

_DENSE_PLACES = {
    "pserver": "on the servers",
    "local": "in the trainer",
    "allreduce": "averaged over the trainers",
    "dense_trainers": "in the dense trainers",
    "stages": "in stages of a pipeline",
}

_STAGE_PARTS = {
    "compute": "computes",
    "bubble": "bubble",
    "hand_over": "hand-over",
    "rows": "rows",
    "dense_step": "dense step",
    "rest": "between steps",
}
"""Of the time of a pipeline's trainers, see ``collective.pipeline_clock``."""

_SPLIT = ("dense_trainers", "stages")


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
        copc: clicks over predicted clicks, on the same.
        auc_ceiling: the best possible AUC on those rows, where it is known.
        eval_samples: held-out rows.
        rows: rows of the table over all shards.
        bytes_per_row: weights, state, epoch and index; None while there are no rows.
        retries: requests that had to be sent again.
        bad_lines: lines skipped in the last pass over the training rows, and in the held-out ones.
        first_bad_lines: the first five of those, as file:line and reason.
        mode: how trainers worked together.
        trainers: whose figures these are.
        strategy: the knobs that the mode reads, and their values.
        watch: the watch list, see ``trainer.job.watch``.
        speedup: samples a second against those of one trainer; None if that is not known.
        lost: with on_restart go_on, of each shard what ``pserver.Lost`` says.
        warnings: what the user should look at.
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
    copc: float | None
    auc_ceiling: float | None
    eval_samples: int
    rows: int
    bytes_per_row: float | None
    retries: int
    bad_lines: int
    first_bad_lines: list[str]
    mode: str
    trainers: int
    strategy: dict[str, object]
    watch: dict[str, float]
    speedup: float | None
    lost: list[dict[str, int]]
    warnings: list[str]

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
        clicks = "" if summary.copc is None else f"; clicks over predicted ones {summary.copc:.3f}"
        told = f"{summary.log_loss:.4f} on {summary.eval_samples:,} rows{clicks}"
        table.add_row("log loss", told)
    table.add_row("samples/s", f"{summary.samples_per_s:,.0f} on {summary.device}")
    if summary.speedup is not None:
        table.add_row("against one trainer", f"{summary.speedup:.2f} times its samples/s")
    table.add_row("communication", f"{100.0 * summary.comm_share:.1f} % of the training time")
    table.add_row("mode", _mode_text(summary))
    table.add_row("watch", _watch_text(summary.watch))
    if stages := _stages_text(summary.watch):
        table.add_row("stages", stages)
    if memory := memory_text(summary.watch):
        table.add_row("memory", memory)
    table.add_row(
        "trained", f"{summary.samples:,} rows, {summary.steps} steps, {summary.seconds:.1f} s"
    )
    bytes_text = (
        "" if summary.bytes_per_row is None else f", {summary.bytes_per_row:.0f} bytes each"
    )
    if summary.shards:  # a trainer of the dense part has none
        table.add_row("table rows", f"{summary.rows:,} on {summary.shards} shards{bytes_text}")
    if summary.retries:
        table.add_row("retries", str(summary.retries))
    if summary.bad_lines:
        shown = "\n".join(summary.first_bad_lines)
        table.add_row("bad lines", f"{summary.bad_lines} skipped\n{shown}")
    for warning in summary.warnings:
        table.add_row("warning", warning)
    return table


def merged_summary(
    summaries: Sequence[Summary], failures: Sequence[str], *, base: float | None
) -> Summary:
    """Return the figures of several trainers of one job as one.

    Counts are added; training took as long as the slowest; the AUC in training is the mean by
    samples; what is scored is scored by trainer 0.

    Args:
        summaries: of the trainers, the lowest id first; at least one.
        failures: what is told of the trainers that failed.
        base: samples a second of one trainer alone.
    """
    first = summaries[0]
    samples = sum(one.samples for one in summaries)
    seconds = max(one.seconds for one in summaries)
    seen = [(one.train_auc, one.samples) for one in summaries if one.train_auc is not None]
    weight = sum(count for _, count in seen)
    watch = merged([one.watch for one in summaries])
    lost = merged_lost([one.lost for one in summaries])
    samples_per_s = samples / seconds if seconds else 0.0
    return dataclasses.replace(
        first,
        steps=sum(one.steps for one in summaries),
        samples=samples,
        seconds=seconds,
        samples_per_s=samples_per_s,
        comm_share=sum(one.comm_share for one in summaries) / len(summaries),
        train_auc=sum(auc * count for auc, count in seen) / weight if weight else None,
        retries=sum(one.retries for one in summaries),
        bad_lines=sum(one.bad_lines for one in summaries),
        first_bad_lines=[line for one in summaries for line in one.first_bad_lines][
            :SHOWN_BAD_LINES_MAX
        ],
        trainers=len(summaries),
        watch=watch,
        speedup=samples_per_s / base if base else None,
        lost=lost,
        warnings=[*failures, *lost_texts(lost), *warnings(watch)],
    )


def _mode_text(summary: Summary) -> str:
    """Return the mode, how many trainers, and where the dense part was."""
    plural = "s" if summary.trainers > 1 else ""
    where = _DENSE_PLACES[str(summary.strategy["dense"])]
    return f"{summary.mode}, {summary.trainers} trainer{plural}, dense part {where}"


def _watch_text(watch: Facts) -> str:
    """Return the watch list in a few words; what was not measured is left out."""
    parts = [
        (("staleness_p50", "staleness_p99", "staleness_max"), "staleness {:.0f}/{:.0f}/{:.0f}"),
        (("merge_factor",), "{:.1f} steps a push"),
        (("queue_depth_max",), "queue at most {:.0f}"),
        (("pull_share",), "pull {:.1%}"),
        (("push_share",), "push {:.1%}"),
        (("allreduce_wait_share",), "all-reduce {:.1%}"),
        (("dense_wait_share",), "waited for dense trainers {:.1%}"),
        (("embed_wait_share",), "waited for embedding trainers {:.1%}"),
        (("stage_queue_bytes_max",), "{:,.0f} bytes waited for a stage at most"),
        (("bubble_share", "bubble_formula"), "bubble {:.1%} (formula {:.1%})"),
        (("skipped_steps", "loss_scale"), "{:.0f} steps skipped, loss scale {:,.0f}"),
        (("grad_norm",), "gradient norm {:.3g}"),
        (("nonfinite",), "{:.0f} steps with NaN"),
        (("loss",), "loss {:.4f}"),
        (("loss_spread",), "spread {:.4f}"),
    ]
    return ", ".join(
        text.format(*(watch[name] for name in names))
        for names, text in parts
        if all(name in watch for name in names)
    )


def _stages_text(watch: Facts) -> str:
    """Return where the time of a pipeline's trainers went, a line each; empty without one."""
    lines = []
    for place in itertools.takewhile(lambda n: f"place_{n}_total_s" in watch, itertools.count()):
        total_s = watch[f"place_{place}_total_s"] or math.inf
        shares = [
            f"{text} {watch[f'place_{place}_{part}_s'] / total_s:.1%}"
            for part, text in _STAGE_PARTS.items()
        ]
        lines.append(f"trainer {place}: {', '.join(shares)}")
    return "\n".join(lines)


def _auc_text(summary: Summary) -> str:
    """Return the AUC beside the best that is possible, as far as they are known."""
    if summary.auc is None:
        if not summary.shards and summary.strategy["dense"] in _SPLIT:
            # A trainer of the dense part alone: others score.
            return "none" if summary.train_auc is None else f"{summary.train_auc:.4f} in training"
        text = "no held-out rows (--eval-data or --eval-last)"
        return text if summary.train_auc is None else f"{summary.train_auc:.4f} in training; {text}"
    if summary.auc_ceiling is None:
        return f"{summary.auc:.4f} on held-out rows"
    return f"{summary.auc:.4f} on held-out rows; best possible {summary.auc_ceiling:.4f}"
