"""Named arrays to the bytes of a safetensors file and back.

Rooms before and after: ``snapshot`` and ``load`` bring and take arrays; ``store`` brings the bytes to
a disk. ``safetensors.numpy.load_file`` alone reads what is written here.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from pserver.errors import CheckpointError


def encode(arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str]) -> bytes:
    """Return the bytes of a file.

    Args:
        arrays: by name.
        facts: short texts that stand in the file's head, for who finds the file alone.
    """
    whole = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    return safetensors.save(whole, dict(facts))


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
