"""Batches that are read and deduped in a thread of their own, ahead of their steps.

Rooms before and after: ``dataset`` brings batches, ``loop`` takes them; a table's module finds the distinct keys.

What always holds: batches come in the order of the data set, and an error of reading comes after the batches before it.
"""

import queue
import threading
from collections.abc import Generator, Iterable

import pserver
from trainer.dataset.batch import Batch
from trainer.embedding import EmbeddingBag

_READ_END_S = 2.0  # how long the end of a run waits for a read that is going on
_POLL_S = 0.1  # how soon the reading thread sees that nobody wants more


class _Failure:
    """An error of the reading thread, on its way to the loop."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def read_ahead(
    batches: Iterable[Batch], bag: EmbeddingBag, *, depth: int
) -> Generator[tuple[Batch, pserver.Distinct], None, None]:
    """Yield batches with their distinct keys, read and deduped in another thread.

    The thread ends with the generator: close it if it is not read to its end.

    Args:
        batches: in order.
        bag: whose keys they are.
        depth: batches that may be ready and waiting, at least 1.

    Raises:
        Exception: what reading raised, after the batches before it.
    """
    ready: queue.Queue[tuple[Batch, pserver.Distinct] | _Failure | None] = queue.Queue(depth)
    is_over = threading.Event()

    def put(item: tuple[Batch, pserver.Distinct] | _Failure | None) -> bool:
        while not is_over.is_set():
            try:
                ready.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for number, batch in pserver.numbered(batches):
                with pserver.traced(number), pserver.span("dedupe"):
                    distinct = bag.distinct(batch.keys)
                if not put((batch, distinct)):
                    return
        except BaseException as error:  # noqa: BLE001 - raised in the loop, which waits for it
            put(_Failure(error))
            return
        put(None)

    thread = threading.Thread(target=read, name="trainer-read", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, _Failure):
                raise item.error
            yield item
    finally:
        is_over.set()
        # It ends by itself; a read that hangs (a dead mount) must not hold up the error on its way.
        thread.join(_READ_END_S)
