"""The index kernels: from keys to row ids, partition by partition.

Rooms before and after: ``table.index`` owns the arrays; ``rows`` reads the row ids found here.

Layout. A bucket is two uint64 side by side, the key and row id + 1, so one cache line answers a
probe; 0 in the second word means empty, so every key is legal. Each of the 1024 partitions has
a region of its own, a power of two of buckets, probed linearly, and doubles by itself: no
request waits for a full rehash. The load factors at which partitions double are spread over
[1/2, 3/4), since uniform hashing would make all of them double in the same request. A region
that was left is written down for the caller, who gives its pages back to the system: old
regions add up to the size of the live ones and are of no use to anybody, being too small.
Only rows that come, go and come again in other partitions can use the address space up; then
``rebuild`` moves all regions into fresh memory.

What always holds:
    * ``heads[p, SIZE] <= heads[p, LIMIT]``, so a probe meets an empty bucket and ends.
    * A bucket's key has its partition in the top bits of its hash; the low bits choose the
      bucket, so the two are independent.

Cost: one random cache line a key (two when the row is created), asked for ahead. Where probes begin is worked
out for all keys first and kept where their row ids will stand, and most keys lie there: to hash each key, and to
look its region up, both when it is asked for and when it is read, took 1.5 to 2 times as long (27,500 keys in
8 M rows, in and out of cache).
"""

import numpy as np
from numba import njit

from pserver.arrays import Heads, Keys, RowIds, Words
from pserver.kernel.ahead import FAR, NEAR
from pserver.mix import mix64, prefetch, prefetch_far

PARTITION_SHIFT = np.uint64(54)
"""hash >> 54 is the partition: 1024 of them."""

BUCKETS_MIN = 8
"""Buckets of an empty partition's region: 1024 * 8 * 16 bytes = 128 KiB an empty table."""

OFFSET, MASK, SIZE, LIMIT = 0, 1, 2, 3
"""Columns of ``heads`` (1024, 4) int64: first bucket, buckets - 1, rows alive, rows at growth."""

ROWS, NEXT_ROW, FREE_ROWS, NEXT_BUCKET, LIVE_BUCKETS, NUM_DONE, NUM_LEFT, LEFT = range(8)
"""Words of ``counters`` int64: rows alive, next fresh row id, row ids in the free list, next fresh
bucket, buckets in live regions, keys that ``find_or_insert`` has done, regions left since the
caller last looked, and from LEFT on two words for each of those: first bucket and count."""

LEFT_MAX = 4096
"""Regions written down at most: a request of 2^20 new keys leaves 2^20 / 2048 + 1024 of them."""

LEFT_BUCKETS_MIN = 1024
"""Smaller regions (16 KiB, of which a page is lost at the ends) are not written down: they go when the
last partition has left all regions of their size."""

COUNTERS = LEFT + 2 * LEFT_MAX

_ONE = np.uint64(1)
_ZERO = np.uint64(0)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _begin(buckets: Words, heads: Heads, keys: Keys, start: int, row_ids: RowIds) -> None:
    """Write where the probe for each key from ``start`` on begins, and ask for the first of those buckets."""
    for i in range(np.uint64(start), np.uint64(keys.size)):
        hashed = mix64(keys[i])
        partition = hashed >> PARTITION_SHIFT
        mask = np.uint64(heads[partition, MASK])
        row_ids[i] = np.int64(np.uint64(heads[partition, OFFSET]) + (hashed & mask))
    for i in range(start, min(start + FAR, keys.size)):
        prefetch_far(buckets, row_ids[i] << 1)


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _probe(buckets: Words, heads: Heads, key: np.uint64) -> np.uint64:
    """Return the bucket that holds ``key``, or the empty one where it belongs."""
    hashed = mix64(key)
    partition = hashed >> PARTITION_SHIFT
    mask = np.uint64(heads[partition, MASK])
    offset = np.uint64(heads[partition, OFFSET])
    position = hashed & mask
    while True:
        bucket = offset + position
        word = bucket << _ONE
        if buckets[word + _ONE] == _ZERO or buckets[word] == key:
            return bucket
        position = (position + _ONE) & mask


@njit(nogil=True, cache=True, error_model="numpy")
def find(
    buckets: Words,  # (2 * capacity,) uint64
    heads: Heads,  # (1024, 4) int64
    keys: Keys,  # (U,) uint64
    row_ids: RowIds,  # (U,) int64, written: the row id, or -1
) -> int:
    """Look up each key and return how many were missing. Changes nothing but ``row_ids``."""
    count = keys.size
    missing = 0
    _begin(buckets, heads, keys, 0, row_ids)
    for i in range(count):
        if i + FAR < count:
            prefetch_far(buckets, row_ids[i + FAR] << 1)
        if i + NEAR < count:
            prefetch(buckets, row_ids[i + NEAR] << 1)
        word = np.uint64(row_ids[i]) << _ONE
        if buckets[word] != keys[i] or buckets[word + _ONE] == _ZERO:
            word = _probe(buckets, heads, keys[i]) << _ONE
        row_id = np.int64(buckets[word + _ONE]) - 1
        row_ids[i] = row_id
        if row_id < 0:
            missing += 1
    return missing


@njit(nogil=True, cache=True, error_model="numpy")
def limit_of(partition: int, num_buckets: int) -> int:
    """Return how many rows a region of ``num_buckets`` takes before it doubles.

    Between 1/2 and 3/4 of the buckets; which, depends on the partition alone.
    """
    # 389 is odd, so multiplying by it modulo 1024 visits each fraction once.
    fraction = (partition * 389) & 1023
    return (num_buckets * (2048 + fraction)) >> 12


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _take_region(counters: RowIds, num_buckets: int) -> int:
    """Return the first bucket of a fresh region: untouched memory, so all zero."""
    first: int = counters[NEXT_BUCKET]
    counters[NEXT_BUCKET] = first + num_buckets
    counters[LIVE_BUCKETS] += num_buckets
    return first


@njit(nogil=True, cache=True, error_model="numpy", inline="always")
def _leave_region(counters: RowIds, first: int, num_buckets: int) -> None:
    """Write down a region that is used no more."""
    counters[LIVE_BUCKETS] -= num_buckets
    if num_buckets >= LEFT_BUCKETS_MIN and counters[NUM_LEFT] < LEFT_MAX:
        position = LEFT + 2 * counters[NUM_LEFT]
        counters[position] = first
        counters[position + 1] = num_buckets
        counters[NUM_LEFT] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def open_partitions(heads: Heads, counters: RowIds) -> None:
    """Give each partition of a new index its first region."""
    for partition in range(heads.shape[0]):
        heads[partition, SIZE] = 0
        _settle(heads, partition, _take_region(counters, BUCKETS_MIN), BUCKETS_MIN)


@njit(nogil=True, cache=True, error_model="numpy")
def _move(
    buckets: Words, old_first: int, old_count: int, target: Words, first: int, count: int
) -> None:
    """Copy the entries of one region of ``buckets`` into an empty one of ``target``."""
    mask = np.uint64(count - 1)
    offset = np.uint64(first)
    for i in range(old_count):
        source = np.uint64(old_first + i) << _ONE
        value = buckets[source + _ONE]
        if value != _ZERO:
            key = buckets[source]
            position = mix64(key) & mask
            while target[((offset + position) << _ONE) + _ONE] != _ZERO:
                position = (position + _ONE) & mask
            word = (offset + position) << _ONE
            target[word] = key
            target[word + _ONE] = value


@njit(nogil=True, cache=True, error_model="numpy")
def _settle(heads: Heads, partition: int, first: int, count: int) -> None:
    """Write down a partition's new region."""
    heads[partition, OFFSET] = first
    heads[partition, MASK] = count - 1
    heads[partition, LIMIT] = limit_of(partition, count)


@njit(nogil=True, cache=True, error_model="numpy")
def _double(buckets: Words, heads: Heads, counters: RowIds, partition: int) -> bool:
    """Move a partition into a region of twice the size, and return whether there was one."""
    old_first = heads[partition, OFFSET]
    old_count = heads[partition, MASK] + 1
    count = old_count * 2
    if counters[NEXT_BUCKET] + count > buckets.size // 2:
        return False
    first = _take_region(counters, count)
    _move(buckets, old_first, old_count, buckets, first, count)
    _leave_region(counters, old_first, old_count)
    _settle(heads, partition, first, count)
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def rebuild(
    buckets: Words,  # what is used no more afterwards
    heads: Heads,  # written
    counters: RowIds,  # written
    fresh: Words,  # as large as ``buckets``, all zero; written
) -> None:
    """Move every partition into the smallest region that takes its rows, in fresh memory."""
    counters[NEXT_BUCKET] = 0
    counters[LIVE_BUCKETS] = 0
    for partition in range(heads.shape[0]):
        count = BUCKETS_MIN
        while limit_of(partition, count) < heads[partition, SIZE]:
            count *= 2
        first = _take_region(counters, count)
        _move(buckets, heads[partition, OFFSET], heads[partition, MASK] + 1, fresh, first, count)
        _settle(heads, partition, first, count)


@njit(nogil=True, cache=True, error_model="numpy")
def find_or_insert(
    buckets: Words,  # (2 * capacity,) uint64, written
    heads: Heads,  # (1024, 4) int64, written
    counters: RowIds,  # (COUNTERS,) int64, written
    free_rows: RowIds,  # (rows_max,) int64, the free list: a stack
    keys: Keys,  # (U,) uint64, repeats allowed
    start: int,  # position of the first key to look up
    row_ids: RowIds,  # (U,) int64, written
    created: RowIds,  # (U - start,) int64, written: positions in ``keys`` whose row is new
) -> int:
    """Look up each key, give the missing ones a row id, and return how many were missing.

    The caller has checked that there is room for U more rows, and gives the new rows their
    first weights before anybody reads them. Where a partition finds no region to grow into, it
    ends early: ``counters[NUM_DONE]`` is the position of the first key that was not looked up.
    """
    count = keys.size
    num_created = 0
    _begin(buckets, heads, keys, start, row_ids)
    for i in range(start, count):
        if i + FAR < count:
            prefetch_far(buckets, row_ids[i + FAR] << 1)
        if i + NEAR < count:
            prefetch(buckets, row_ids[i + NEAR] << 1)
        key = keys[i]
        # A region that was left in this call still tells the truth of the keys that it had.
        word = np.uint64(row_ids[i]) << _ONE
        if buckets[word] != key or buckets[word + _ONE] == _ZERO:
            word = _probe(buckets, heads, key) << _ONE
        if buckets[word + _ONE] != _ZERO:
            row_ids[i] = np.int64(buckets[word + _ONE]) - 1
            continue
        partition = int(np.int64(mix64(key) >> PARTITION_SHIFT))
        if heads[partition, SIZE] >= heads[partition, LIMIT]:
            if not _double(buckets, heads, counters, partition):
                counters[NUM_DONE] = i
                return num_created
            word = _probe(buckets, heads, key) << _ONE
        if counters[FREE_ROWS] > 0:
            counters[FREE_ROWS] -= 1
            row_id = free_rows[counters[FREE_ROWS]]
        else:
            row_id = counters[NEXT_ROW]
            counters[NEXT_ROW] = row_id + 1
        buckets[word] = key
        buckets[word + _ONE] = np.uint64(row_id + 1)
        heads[partition, SIZE] += 1
        counters[ROWS] += 1
        row_ids[i] = row_id
        created[num_created] = i
        num_created += 1
    counters[NUM_DONE] = count
    return num_created


@njit(nogil=True, cache=True, error_model="numpy")
def erase(
    buckets: Words,  # written
    heads: Heads,  # written
    counters: RowIds,  # written
    free_rows: RowIds,  # written: the erased row ids are pushed
    keys: Keys,  # (U,) uint64, repeats allowed
) -> int:
    """Remove each key that is there, free its row id, and return how many were removed.

    Later entries of the same run are shifted back, so no mark of a removed key stays behind
    and probes do not grow longer. A region never shrinks.
    """
    removed = 0
    for i in range(keys.size):
        key = keys[i]
        hashed = mix64(key)
        partition = np.int64(hashed >> PARTITION_SHIFT)
        mask = np.uint64(heads[partition, MASK])
        offset = np.uint64(heads[partition, OFFSET])
        hole = _probe(buckets, heads, key) - offset
        value = buckets[((offset + hole) << _ONE) + _ONE]
        if value == _ZERO:
            continue
        free_rows[counters[FREE_ROWS]] = np.int64(value) - 1
        counters[FREE_ROWS] += 1
        counters[ROWS] -= 1
        heads[partition, SIZE] -= 1
        removed += 1
        position = (hole + _ONE) & mask
        while True:
            source = (offset + position) << _ONE
            if buckets[source + _ONE] == _ZERO:
                break
            home = mix64(buckets[source]) & mask
            # The entry may move into the hole if its home is not between the two.
            if ((position - home) & mask) >= ((position - hole) & mask):
                target = (offset + hole) << _ONE
                buckets[target] = buckets[source]
                buckets[target + _ONE] = buckets[source + _ONE]
                hole = position
            position = (position + _ONE) & mask
        buckets[((offset + hole) << _ONE) + _ONE] = _ZERO
    return removed


@njit(nogil=True, cache=True, error_model="numpy")
def entries(
    buckets: Words,
    heads: Heads,
    partition: int,
    keys: Keys,  # (size of the partition,) uint64, written
    row_ids: RowIds,  # (size of the partition,) int64, written
) -> int:
    """List a partition's keys and row ids, in no order, and return how many there are."""
    count = 0
    first = heads[partition, OFFSET]
    for i in range(heads[partition, MASK] + 1):
        word = np.uint64(first + i) << _ONE
        if buckets[word + _ONE] != _ZERO:
            keys[count] = buckets[word]
            row_ids[count] = np.int64(buckets[word + _ONE]) - 1
            count += 1
    return count


@njit(nogil=True, cache=True, error_model="numpy")
def walk(
    buckets: Words,
    heads: Heads,
    hand: RowIds,  # (2,) written: partition and bucket where the walk begins, and where it ends
    keys: Keys,  # (N,) uint64, written as far as returned
    row_ids: RowIds,  # (N,) int64, written as far as returned
) -> int:
    """List the rows from a hand on, at most N and each once, and return how many.

    A walk ends after N rows, or once round. A hand beyond its region, as after a rebuild, begins with
    the next partition.
    """
    count, partition, bucket = 0, hand[0], hand[1]
    begin = bucket
    for turn in range(heads.shape[0] + 1):
        first, last = heads[partition, OFFSET], heads[partition, MASK]
        if turn == heads.shape[0]:
            last = min(last, begin - 1)  # the first partition again, up to where the walk began
        while bucket <= last and count < keys.size:
            word = np.uint64(first + bucket) << _ONE
            if buckets[word + _ONE] != _ZERO:
                keys[count] = buckets[word]
                row_ids[count] = np.int64(buckets[word + _ONE]) - 1
                count += 1
            bucket += 1
        if bucket <= last:
            break
        partition = (partition + 1) % heads.shape[0]
        bucket = 0
    hand[0], hand[1] = partition, bucket
    return count
