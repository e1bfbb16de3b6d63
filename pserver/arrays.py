"""Named array types, used in every signature; the shape stands in the docstring."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Keys: TypeAlias = NDArray[np.uint64]
"""uint64 keys naming rows of one table."""

Words: TypeAlias = NDArray[np.uint64]
"""uint64 memory that is not keys: buckets, bitmaps."""

Floats: TypeAlias = NDArray[np.float32]
"""float32 weights, state or gradients."""

Halves: TypeAlias = NDArray[np.uint16]
"""The 16 bits of bfloat16 or float16 weights."""

Doubles: TypeAlias = NDArray[np.float64]
"""float64 option values handed to a kernel."""

RowIds: TypeAlias = NDArray[np.int64]
"""int64 row ids, or positions in another array."""

Heads: TypeAlias = NDArray[np.int64]
"""(1024, 4) int64, the partition heads of an index."""

Counts: TypeAlias = NDArray[np.uint32]
"""uint32 occurrences of a key in a batch."""

Epochs: TypeAlias = NDArray[np.uint32]
"""uint32 epochs, one a row."""

Uint32s: TypeAlias = NDArray[np.uint32]
"""uint32 memory of other meanings: the words of rows, which may hold the bits of a float32."""

Bytes: TypeAlias = NDArray[np.uint8]
"""uint8 counters and marks."""
