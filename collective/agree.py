"""The same values on all ranks: given by rank 0 at the start, and compared while training runs.

Rooms before and after: ``trainer`` calls this with a model's parameters; behind it is ``Group``.

Ranks that step with the same bits stay equal without being told so; a hash of each tensor, compared now
and then, shows that they did. A rank whose memory, library or processor computed something else is named.

What always holds: all ranks raise the same error, or none does. Owner: the thread that uses the group.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from collective.errors import DivergedError
from collective.group import Group

Named = Iterable[tuple[str, Tensor]]


def give_from_first(named: Named, group: Group) -> None:
    """Give every rank the bytes that rank 0 has.

    Args:
        named: names and tensors of any dtype and device, in the same order on all ranks. Written.
        group: of the ranks; every one of them calls this.

    Raises:
        DivergedError: a rank has other names, shapes or dtypes than most; nothing was written.
        MissingRanksError: a rank did not come.
    """
    tensors = list(named)
    layout = ";".join(f"{name} {t.dtype} {tuple(t.shape)}" for name, t in tensors)
    _compare([("names, shapes or dtypes", layout.encode())], group, what="first values")
    for name, tensor in tensors:
        block = _bytes_of(tensor)
        if group.rank:
            block.zero_()
        group.all_reduce(block, what=f"first value of {name!r}")  # x + 0 + 0 ... is x, in every bit
        with torch.no_grad():
            tensor.copy_(block.view(tensor.dtype).view(tensor.shape))


def check_same(named: Named, group: Group, *, what: str) -> None:
    """Compare a hash of each tensor over the ranks.

    Args:
        named: names and tensors, in the same order on all ranks.
        group: of the ranks; every one of them calls this.
        what: the moment, for messages, such as ``step 100``.

    Raises:
        DivergedError: some ranks have other bits than most; the first tensor that differs is named.
        MissingRanksError: a rank did not come.
    """
    _compare([(name, _bytes_of(tensor).numpy()) for name, tensor in named], group, what=what)


def gather(numbers: Tensor, group: Group, *, what: str) -> Tensor:
    """Return (W, n) of (n,) numbers a rank, int64 or float64, on all ranks."""
    rows = torch.zeros((group.world_size, numbers.numel()), dtype=numbers.dtype)
    rows[group.rank] = numbers
    group.all_reduce(rows, what=what)
    return rows


def _bytes_of(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor's bytes in host memory, (n,) uint8."""
    return tensor.detach().cpu().clone().contiguous().view(-1).view(torch.uint8)


def _compare(named: Sequence[tuple[str, object]], group: Group, *, what: str) -> None:
    """Compare hashes of named bytes over the ranks, and name those that differ from most."""
    words = torch.tensor([_word(block) for _, block in named], dtype=torch.int64)
    rows = [tuple(row) for row in gather(words, group, what=f"{what}: comparing").tolist()]
    if not rows or len(set(rows)) == 1:
        return
    counts = Counter(rows)
    usual = max(rows, key=lambda row: counts[row])  # of equally many: the lowest rank's
    ranks = [rank for rank, row in enumerate(rows) if row != usual]
    others = [rank for rank in range(len(rows)) if rank not in ranks]
    first = next(i for i in range(len(named)) if any(rows[rank][i] != usual[i] for rank in ranks))
    raise DivergedError(
        f"{what}: ranks must have the same values, but rank {_listed(ranks)} of {len(rows)} has "
        f"another {named[first][0]!r} than rank {_listed(others)}",
        ranks,
    )


def _word(block: object) -> int:
    """Return 64 bits of a hash, as a signed number."""
    digest = hashlib.blake2b(block, digest_size=8).digest()  # type: ignore[arg-type]  # a buffer
    return int.from_bytes(digest, "little", signed=True)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
