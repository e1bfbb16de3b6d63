"""Named arrays to a safetensors file and back.

Rooms before and after: ``snapshot`` and ``load`` bring and take arrays; ``store`` brings the bytes to
a disk. ``safetensors.numpy.load_file`` alone reads what is written here. The library's own writer makes
one large copy first, which costs as much as all else of a save.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from pserver.errors import CheckpointError

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
"""What the format calls the types of arrays that are written here."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A file that is to be written: its blocks, which nobody may change, and their sum."""

    blocks: tuple[memoryview, ...]
    num_bytes: int
    sha256: str


def encode(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> Encoded:
    """Return a file's blocks, without a copy of arrays that lie in one piece.

    Args:
        arrays: by name. They must stay as they are until the file is written.
        facts: short texts that stand in the file's head, for who finds the file alone.
    """
    head: dict[str, Any] = {"__metadata__": dict(facts)}
    blocks, end = [], 0
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        head[name] = {
            "dtype": _NAMES[whole.dtype.name],
            "shape": whole.shape,
            "data_offsets": [end, end + whole.nbytes],
        }
        end += whole.nbytes
        blocks.append(whole.reshape(-1).view(np.uint8).data)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return encoded((memoryview(len(text).to_bytes(8, "little") + text), *blocks))


def encoded(blocks: Sequence[memoryview]) -> Encoded:
    """Return blocks as a file that is to be written."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(block)
    return Encoded(tuple(blocks), sum(block.nbytes for block in blocks), digest.hexdigest())


def decode(data: bytes, *, where: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file.

    Raises:
        CheckpointError: the bytes are no safetensors file.
    """
    try:
        arrays: dict[str, NDArray[Any]] = safetensors.load(data)
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{where}: no safetensors file: {error}") from error
    return arrays


def checksum(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hex."""
    return hashlib.sha256(data).hexdigest()
