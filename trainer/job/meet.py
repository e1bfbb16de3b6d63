"""How the trainers of a run find each other, and what those of unlike roles show each other.

Rooms before and after: ``job``, ``job.dense`` and ``dense.elsewhere`` call it; ``collective`` does it.
"""

from collective import Group, alone, connect
from collective.tls import TlsFiles
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


def tls_files(settings: RunSettings) -> TlsFiles | None:
    """Return the files of TLS between trainers with role embed and dense: those that servers are shown."""
    cert, key, ca = settings.tls_cert, settings.tls_key, settings.tls_ca
    if cert is None or key is None or ca is None:
        return None
    return TlsFiles(cert, key, ca)
