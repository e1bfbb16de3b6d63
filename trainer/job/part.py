"""The figures of a trainer that has some of the dense part and no table.

Rooms before and after: ``job.dense`` and ``job.stage`` fill them; ``cli`` prints what comes of them.
"""

import math
from dataclasses import dataclass, field

from trainer.config import RunSettings
from trainer.dense.module import choose_device
from trainer.job.summary import Summary, finite
from trainer.job.watch import Facts, Watch, warnings
from trainer.settings.split import in_force


@dataclass(slots=True)
class PartTrained:
    """What training came to. Owner: the training thread.

    Attributes:
        watch: told of each step.
        seconds: of training.
        auc: of the predictions made during training.
        wait_share: share of the time that this trainer waited for others.
        facts: for the watch list.
    """

    watch: Watch = field(default_factory=Watch)
    seconds: float = 0.0
    auc: float = math.nan
    wait_share: float = 0.0
    facts: Facts = field(default_factory=dict)


def part_summary(settings: RunSettings, trained: PartTrained, *, data: str, mode: str) -> Summary:
    """Return the figures; those of tables and held-out rows are of trainers that have them.

    Args:
        settings: of the run.
        trained: by this trainer.
        data: what the summary calls the rows.
        mode: of the trainers that push.
    """
    watch, seconds = trained.watch, trained.seconds
    figures = watch.facts(trained.facts, pull_share=0.0, push_share=0.0)
    return Summary(
        model=settings.model,
        data=data,
        device=str(choose_device(settings.device)),
        shards=0,
        steps=watch.steps,
        samples=watch.samples,
        seconds=seconds,
        samples_per_s=watch.samples / seconds if seconds else 0.0,
        comm_share=trained.wait_share,
        train_auc=finite(trained.auc),
        auc=None,
        log_loss=None,
        copc=None,
        auc_ceiling=None,
        eval_samples=0,
        rows=0,
        bytes_per_row=None,
        retries=0,
        bad_lines=0,
        first_bad_lines=[],
        mode=mode,
        trainers=1,
        strategy=in_force(settings),
        watch=figures,
        speedup=None,
        lost=[],
        warnings=warnings(figures),
    )
