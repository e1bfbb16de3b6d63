"""How the trainers of a run that average something find each other.

Rooms before and after: ``job`` and ``job_dense`` call it; ``collective.connect`` does it.
"""

from collective import Group, alone, connect
from trainer.config import RunSettings


def meet(settings: RunSettings, *, timeout_s: float) -> Group:
    """Return the group of all trainers of this one's role, once they are there.

    Args:
        settings: of the run.
        timeout_s: limit of one operation of the group.

    Raises:
        collective.CollectiveError: the address is none, or some trainers did not come.
    """
    if settings.trainers == 1:
        return alone()
    assert settings.master is not None, "the settings were checked"
    rank = settings.trainer_id or 0
    return connect(
        rank=rank,
        world_size=settings.trainers,
        master=settings.master,
        opens_store=rank == 0 and settings.master_store == "trainer0",
        timeout_s=timeout_s,
        connect_s=settings.barrier_timeout,
    )
