"""What ``pserver.plan`` promises: the bytes that tables and messages really have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pserver.errors import ConfigError
from pserver.kernel.hashmap import BUCKETS_MIN, limit_of
from pserver.placement import NUM_PARTITIONS, shard_of
from pserver.plan import BATCH_KEYS, Plan, expected_buckets, make_plan
from pserver.spec import ROW_DTYPES, ROWS_MAX, STORAGES, TableSpec
from pserver.table.sparse import SparseTable
from pserver.table.storage import Storage
from pserver.wire import PushId, TableSize, build_pull, build_pull_reply, build_push
from trainer.dataset import Generator
from trainer.dataset.generator import NUM_SLOTS


def plan(rows: int, *, dim: int = 16, optimizer: str = "adagrad", shards: int = 1) -> Plan:
    return make_plan(rows=rows, dim=dim, optimizer=optimizer, num_shards=shards, capacity_max=2**28)


def table_with(keys: np.ndarray, *, dim: int, optimizer: str) -> SparseTable:
    spec = TableSpec(name="t", dim=dim, optimizer=optimizer, capacity_max=max(keys.size, 1))
    table = SparseTable(spec)
    for part in np.array_split(keys, 10):
        table.pull(part, np.empty(part.size * dim, np.float32))
    return table


def random_keys(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 2**64, count, np.uint64)


@pytest.mark.parametrize("rows", [1, 1000, 8000, 30_000, 60_000, 100_000, 300_000, 1_000_000])
def test_bytes_are_those_of_a_table_of_that_size(rows: int) -> None:
    """A plan is within 5 % of what a table has, at every point between two doublings."""
    keys = random_keys(rows)
    for dim, optimizer in ((1, "sgd"), (16, "adagrad")):
        table = table_with(keys, dim=dim, optimizer=optimizer)

        planned = plan(rows, dim=dim, optimizer=optimizer)

        assert planned.total_bytes == pytest.approx(table.num_bytes, rel=0.05)
        assert planned.shard_bytes == planned.total_bytes
        assert planned.row_bytes * rows == pytest.approx(table.num_bytes, rel=0.05)
        assert planned.index_bytes * rows == pytest.approx(table._index.num_bytes, rel=0.05)
        slab_bytes = planned.weights_bytes + planned.state_bytes + planned.epoch_bytes
        assert slab_bytes == table.row_bytes


@pytest.mark.parametrize("row_dtype", ROW_DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
def test_bytes_are_those_of_the_dtype_and_of_the_place(
    row_dtype: str, storage: str, tmp_path: Path
) -> None:
    """Narrow weights take their bytes, and a file holds weights and state, not keys and epochs."""
    keys = random_keys(50_000)
    spec = TableSpec(name="t", dim=8, optimizer="adam", row_dtype=row_dtype, storage=storage)
    table = SparseTable(spec, storage=Storage(tmp_path))
    table.pull(keys, np.empty(keys.size * 8, np.float32))

    planned = make_plan(
        rows=keys.size,
        dim=8,
        optimizer="adam",
        num_shards=1,
        capacity_max=2**28,
        row_dtype=row_dtype,
        storage=storage,
    )

    assert planned.total_bytes == pytest.approx(table.num_bytes, rel=0.05)
    slab_bytes = planned.weights_bytes + planned.state_bytes + planned.epoch_bytes
    assert slab_bytes == table.row_bytes
    assert planned.shard_file_bytes == table._slab.file_row_bytes * keys.size
    assert planned.pull_reply_bytes == planned.batch_keys * 4 * 8


def test_keys_that_follow_each_other_cost_the_same() -> None:
    """Keys are hashed, so it does not matter which they are."""
    table = table_with(np.arange(100_000, dtype=np.uint64), dim=4, optimizer="adam")

    planned = plan(100_000, dim=4, optimizer="adam")

    assert planned.total_bytes == pytest.approx(table.num_bytes, rel=0.05)


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_bytes_are_those_of_each_shard(shards: int) -> None:
    """The largest shard and the sum over all are within 5 % of shards with those keys."""
    keys = random_keys(200_000)
    owners = shard_of(keys, shards)
    tables = [table_with(keys[owners == shard], dim=8, optimizer="ftrl") for shard in range(shards)]

    planned = plan(keys.size, dim=8, optimizer="ftrl", shards=shards)

    sizes = [table.num_bytes for table in tables]
    assert planned.total_bytes == pytest.approx(sum(sizes), rel=0.05)
    assert planned.shard_bytes == pytest.approx(max(sizes), rel=0.05)
    assert planned.shard_rows == pytest.approx(max(t.num_rows for t in tables), rel=0.05)
    assert planned.capacity_needed >= max(table.num_rows for table in tables)


@pytest.mark.parametrize("rows", [10_000, 50_000, 250_000])
def test_buckets_are_those_of_drawn_partitions(rows: int) -> None:
    """The mean over chance is what rows thrown into partitions and grown one by one give."""
    rng = np.random.default_rng(rows)

    def grown(partition: int, size: int) -> int:
        count = BUCKETS_MIN
        while limit_of(partition, count) < size:
            count *= 2
        return count

    drawn = [
        grown(partition, size)
        for _ in range(8)
        for partition, size in enumerate(np.bincount(rng.integers(0, NUM_PARTITIONS, rows)))
    ]

    assert expected_buckets(rows).sum() == pytest.approx(sum(drawn) / 8, rel=0.01)


def test_load_stays_between_a_quarter_and_three_quarters() -> None:
    """However many rows there are, regions that doubled are at least a quarter full."""
    for rows in np.geomspace(20_000, 2e12, 60):
        load = rows / expected_buckets(rows).sum()

        assert 0.25 < load < 0.75, rows


def test_message_bytes_are_those_of_the_wire() -> None:
    """Pull, reply and push of a batch are what the messages have beside their heads."""
    planned = plan(10**9)
    count, dim = planned.batch_keys, planned.dim
    pull, _ = build_pull(1, [("t", True, count)])
    reply, _ = build_pull_reply([(1, count * dim)])
    push, _ = build_push(
        1, PushId(b"0" * 16, 1), [TableSize("t", count, count * dim, count)], more=False
    )

    assert 0 < len(pull) - planned.pull_request_bytes < 300
    assert 0 < len(reply) - planned.pull_reply_bytes < 300
    assert 0 < len(push) - planned.push_request_bytes < 300


def test_standard_batch_has_as_many_keys() -> None:
    """The default is what 4096 samples of the generator have."""
    (batch,) = Generator(0, batch_size=4096, rows=4096)

    assert batch.keys.size == 4096 * NUM_SLOTS
    assert np.unique(batch.keys).size == pytest.approx(BATCH_KEYS, rel=0.01)


def test_room_is_judged_by_the_shard_with_the_most_rows() -> None:
    """Two billion rows fit on eight shards of the default capacity, and not on seven."""
    fits, full = plan(2 * 10**9, shards=8), plan(2 * 10**9, shards=7)

    assert (fits.is_capacity_enough, fits.shards_needed) == (True, 8)
    assert (full.is_capacity_enough, full.shards_needed) == (False, 8)
    assert full.capacity_needed > full.shard_rows > full.capacity_max


def test_capacity_of_one_shard_is_the_rows() -> None:
    """With one shard nothing is left to chance."""
    planned = make_plan(rows=10, dim=1, optimizer="sgd", num_shards=1, capacity_max=10)

    assert (planned.capacity_needed, planned.is_capacity_enough) == (10, True)


def test_no_number_of_shards_is_named_where_none_is_enough() -> None:
    """More rows than 1024 shards of that capacity hold have no number of shards."""
    planned = make_plan(rows=10**6, dim=1, optimizer="sgd", num_shards=1, capacity_max=5)

    assert planned.shards_needed is None


def test_state_is_that_of_the_rule() -> None:
    """Bytes and parts of the state follow the optimizer's options."""
    assert plan(10, optimizer="adam").state_bytes == 4 * 33
    assert plan(10, optimizer="adam").state_parts == {"m": 16, "v": 16, "t": 1}
    assert plan(10, optimizer="adagrad:state=row").state_bytes == 4
    assert plan(10, optimizer="sgd").state_parts == {}


@pytest.mark.parametrize(
    ("field", "value", "fact"),
    [
        ("rows", 0, "--rows must be in [1, "),
        ("rows", ROWS_MAX * 1024 + 1, "--rows must be in [1, "),
        ("dim", 4097, "--dim must be in [1, 4096], got 4097"),
        ("num_shards", 1025, "--shards must be in [1, 1024], got 1025"),
        ("capacity_max", 2**31, "--capacity-max must be in [1, 2147483647]"),
        ("batch_keys", 0, "--batch-keys must be in [1, "),
        ("row_dtype", "bf16", "--row-dtype: unknown value 'bf16'; did you mean 'bfloat16'"),
        ("storage", "disk", "--storage: unknown value 'disk'; valid: file, memory"),
        ("optimizer", "adm", "--optimizer: unknown rule 'adm'; did you mean 'adam'"),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: object, fact: str) -> None:
    """A number out of range and an unknown rule are refused by their flag."""
    values: dict[str, object] = {
        "rows": 10,
        "dim": 1,
        "optimizer": "sgd",
        "num_shards": 1,
        "capacity_max": 10,
    }

    with pytest.raises(ConfigError) as caught:
        make_plan(**{**values, field: value})  # type: ignore[arg-type]

    assert fact in str(caught.value)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(("dim", "optimizer"), [(16, "adagrad"), (8, "adam"), (1, "sgd")])
def test_bytes_of_ctr_are_those_of_rows_with_and_without_embedx(
    share: float, dim: int, optimizer: str
) -> None:
    """Words a row for all, a second part for those that have it."""
    rows = 20_000
    keys = random_keys(rows)
    spec = TableSpec(name="t", dim=dim, optimizer=optimizer, accessor="ctr", capacity_max=rows)
    table = SparseTable(spec)
    weights = np.zeros((rows, dim), np.float32)
    weights[: round(share * rows), 1:] = 1.0
    table.assign(keys, weights.reshape(-1))

    planned = make_plan(
        rows=rows,
        dim=dim,
        optimizer=optimizer,
        num_shards=1,
        capacity_max=rows,
        accessor="ctr",
        embedx_share=share,
    )

    assert planned.total_bytes == pytest.approx(table.num_bytes, rel=0.05)


def test_a_share_of_embedx_is_refused_where_rows_have_one_part() -> None:
    """It would have no effect."""
    with pytest.raises(ConfigError, match="--embedx-share has no effect"):
        make_plan(rows=10, dim=4, optimizer="sgd", num_shards=1, capacity_max=99, embedx_share=0.5)


@pytest.mark.parametrize(
    "rules",
    [
        {"evict": "lru:rows=1e5"},
        {"evict": "lfu:rows=1e5", "ttl_days": 7},
        {"ttl_days": 7},
        {"accessor": "ctr", "evict": "score:bytes=1e8"},
        {"accessor": "ctr", "embedx_optimizer": "adam"},
        {"accessor": "ctr", "embedx_optimizer": "sgd", "evict": "lfu:rows=1e5"},
    ],
)
def test_bytes_are_those_of_rows_that_may_go_and_of_two_rules(rules: dict[str, Any]) -> None:
    """Words of eviction and of days are counted, and the second part by its own rule."""
    rows, capacity_max = 20_000, 2**22
    spec = TableSpec(name="t", dim=4, optimizer="adagrad", capacity_max=capacity_max, **rules)
    table = SparseTable(spec)
    table.assign(random_keys(rows), np.ones(rows * 4, np.float32))

    planned = make_plan(
        rows=rows, dim=4, optimizer="adagrad", num_shards=1, capacity_max=capacity_max, **rules
    )

    assert planned.total_bytes == pytest.approx(table.num_bytes, rel=0.05)
    slab_bytes = planned.weights_bytes + planned.state_bytes + planned.epoch_bytes
    assert slab_bytes * rows == table.row_bytes * rows + table.slab.extra_bytes


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"embedx_optimizer": "sgd"}, "--embedx-optimizer has no effect with accessor plain"),
        ({"evict": "lrv:rows=9"}, "--evict: unknown rule 'lrv'; did you mean 'lru'"),
        ({"evict": "score:rows=9"}, "--evict: score.* have no score"),
        ({"ttl_days": -1}, r"--ttl-days must be in \[0, 36500\], got -1"),
        ({"ttl_days": 1, "accessor": "ctr"}, "--ttl-days is for the accessor plain"),
        (
            {"accessor": "ctr", "embedx_optimizer": "adm"},
            "--embedx-optimizer: unknown rule 'adm'; did you mean 'adam'",
        ),
    ],
)
def test_rules_that_a_table_could_not_have_are_refused(rules: dict[str, Any], message: str) -> None:
    """By the flag, as the spec would be by the field."""
    with pytest.raises(ConfigError, match=message):
        make_plan(rows=10, dim=4, optimizer="sgd", num_shards=1, capacity_max=99, **rules)


ADMISSIONS = {
    "count:n=3": "plain",
    "count:n=3,filter=sketch,counters=1e6": "plain",
    "probability:p=0.5": "plain",
    "show_click:score=5": "ctr",
    "always": "plain",
}


@pytest.mark.parametrize(("admission", "accessor"), ADMISSIONS.items())
@pytest.mark.parametrize("shards", [1, 3])
def test_bytes_of_admission_are_those_of_its_filter(
    admission: str, accessor: str, shards: int
) -> None:
    """A plan is within 5 % of what filters have that counted so many keys, on every shard."""
    dim, keys = 2, random_keys(60_000)
    owners = shard_of(keys, shards)
    sizes = []
    for shard in range(shards):
        own = keys[owners == shard]
        table = SparseTable(TableSpec(name="t", dim=dim, accessor=accessor, admission=admission))
        for part in np.array_split(own, 5):
            grads = np.zeros(part.size * dim, np.float32)
            table.check_push(part, grads)
            table.push(part, grads)
        sizes.append(0 if table.gate is None else table.gate.filter.num_bytes)
    is_by_key = admission in ("count:n=3", "show_click:score=5")

    planned, without = (
        make_plan(
            rows=1000,
            dim=dim,
            optimizer="sgd",
            num_shards=shards,
            capacity_max=10_000,
            accessor=accessor,
            admission=rule,
            waiting_keys=keys.size if is_by_key and rule == admission else 0,
        )
        for rule in (admission, "always")
    )

    assert planned.filter_bytes == pytest.approx(sum(sizes), rel=0.05)
    assert planned.total_bytes - without.total_bytes == pytest.approx(planned.filter_bytes, abs=2)
    assert planned.shard_bytes - without.shard_bytes == pytest.approx(max(sizes), rel=0.05)
    assert planned.is_capacity_enough is not is_by_key  # 60,000 keys wait, on at most 3 shards


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"admission": "counts:n=3"}, "--admission: unknown rule 'counts'; did you mean 'count'"),
        ({"waiting_keys": 5}, "--waiting-keys has no effect with admission always"),
        ({"admission": "count:n=3", "waiting_keys": -1}, r"--waiting-keys must be in \[0, "),
    ],
)
def test_admission_is_refused_when_no_table_could_have_it(
    rules: dict[str, Any], message: str
) -> None:
    """A rule that there is not, and keys that no rule would keep anything of."""
    with pytest.raises(ConfigError, match=message):
        make_plan(rows=10, dim=4, optimizer="sgd", num_shards=1, capacity_max=99, **rules)
