"""What a table *is*: the spec that every client and every shard agree on.

Rooms before and after: a user writes a spec; ``client`` sends it in CreateTable;
``table.registry`` makes the table, or refuses a spec that differs.

A rule (optimizer, initializer, accessor, admission) is one short text, the same on a command line, in TOML and on
the wire: ``adagrad:lr=0.05,state=row``.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pserver.errors import ConfigError, nearest

DIM_MAX = 4096
"""Floats a row sees at most: 16 KiB of weights, so that a part of 4 MiB holds 200 rows."""

ROWS_MAX = 2**31 - 1
"""Rows of a table on one shard at most."""

TABLES_MAX = 256
"""Tables of one shard at most; each has its own series in the metrics."""

DENSE_LENGTH_MAX = 2**28
"""Floats of a dense table at most, over all shards: 1 GiB of weights, a hundred times what the dense
part of a CTR model has."""

ON_NAN = ("reject", "zero", "fail")
UNKNOWN_READS = ("first", "zeros")
ROW_DTYPES = ("float32", "bfloat16", "float16")
"""What the weights of rows are kept in; state is float32."""
DAYS_MAX = 36_500
"""A row may go unwritten for a hundred years."""

STORAGES = ("memory", "file")
"""Where a shard keeps the rows of a table."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Rule:
    """A parsed rule: its name and the options that were written, as text."""

    name: str
    options: Mapping[str, str]


def parse_rule(text: str, *, where: str) -> Rule:
    """Split ``name:option=value,...`` without judging the names.

    Args:
        text: the rule as written.
        where: what the error names, such as ``--optimizer``.

    Raises:
        ConfigError: the text does not have that form.

    >>> parse_rule("adagrad:lr=0.05,state=row", where="x")
    Rule(name='adagrad', options={'lr': '0.05', 'state': 'row'})
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    options: dict[str, str] = {}
    for item in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in item.partition("="))
        if not key or not equals or not value:
            raise ConfigError(
                f"{where}: must look like name:option=value,option=value, got {text!r}"
            )
        if key in options:
            raise ConfigError(f"{where}: option {key!r} is given twice in {text!r}")
        options[key] = value
    if not name:
        raise ConfigError(f"{where}: must begin with a rule's name, got {text!r}")
    return Rule(name, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """A table's spec; two are the same table if and only if all fields agree.

    Attributes:
        name: 1 to 64 letters, digits, ``_ . -``.
        dim: floats of weights a row, 1 to 4096.
        optimizer: the rule that a push applies, see ``pserver optimizers``.
        initializer: the rule of first weights: zeros, constant, uniform, normal,
            truncated_normal.
        seed: what first weights depend on, with the table's name and the key.
        capacity_max: rows a shard holds at most; address space, not memory, is reserved for them.
        accessor: what is kept of a key beside its weights: "plain" nothing; "ctr" statistics, and a
            row in two parts, the second of which a key gets once its score is high enough.
        embedx_optimizer: the rule of the second part; empty: as ``optimizer``. For "ctr" only.
        admission: which new keys get a row: "always", or by count, probability or show_click.
        on_nan: what a push with NaN, infinity or a number over 1e12 does: "reject" refuses the whole
            message, "zero" takes each such number as 0, "fail" refuses the message and every later
            push until the table is cleared.
        unknown_reads: what a read that creates nothing gives for a key without a row: the "first"
            weights that it would get, or "zeros".
        row_dtype: what weights are kept in: ``float32``, or ``bfloat16`` or ``float16``, to which steps are
            rounded by chance, so that small ones count on average. Optimizer state is float32.
        storage: ``memory``, or ``file``: rows on a sparse file in the folder that each shard was started
            with (``--storage-dir``), for tables larger than memory. Keys and epochs stay in memory.
        ttl_days: ``pserver shrink`` removes rows that were not written for more than so many days of
            data; 0 none. The accessor ctr has ``delete_after_unseen_days`` for that.
        evict: which rows fall out of a shard that is over its limit: "none", "lru:rows=NUMBER",
            "lfu:rows=NUMBER", "score:rows=NUMBER" (ctr), or with ``bytes=NUMBER``.
    """

    name: str
    dim: int
    optimizer: str = "adagrad:lr=0.05"
    initializer: str = "uniform:low=-0.01,high=0.01"
    seed: int = 0
    capacity_max: int = 2**28
    accessor: str = "plain"
    embedx_optimizer: str = ""
    admission: str = "always"
    on_nan: str = "reject"
    unknown_reads: str = "first"
    row_dtype: str = "float32"
    storage: str = "memory"
    ttl_days: int = 0
    evict: str = "none"

    def __post_init__(self) -> None:
        """Refuse a field that is out of range."""
        _check_name(self.name)
        for field, low, high in (
            ("dim", 1, DIM_MAX),
            ("seed", 0, 2**64 - 1),
            ("capacity_max", 1, ROWS_MAX),
            ("ttl_days", 0, DAYS_MAX),
        ):
            _check_number(self.name, field, getattr(self, field), low, high)
        _check_word(self.name, "on_nan", self.on_nan, ON_NAN)
        _check_word(self.name, "unknown_reads", self.unknown_reads, UNKNOWN_READS)
        _check_word(self.name, "row_dtype", self.row_dtype, ROW_DTYPES)
        _check_word(self.name, "storage", self.storage, STORAGES)

    @property
    def needs(self) -> frozenset[str]:
        """Return what a push should say of its keys: of "counts", "clicks" and "slots" what counts.

        >>> sorted(TableSpec(name="t", dim=4, admission="show_click:score=1").needs)
        ['clicks', 'counts']
        """
        if parse_rule(self.accessor, where="accessor").name == "ctr":
            return frozenset(("counts", "clicks", "slots"))
        admission = parse_rule(self.admission, where="admission").name
        scale = parse_rule(self.optimizer, where="optimizer").options.get("show_scale")
        counts = admission in ("count", "show_click") or scale == "on"
        clicks = admission == "show_click"
        return frozenset(("counts",) * counts + ("clicks",) * clicks)

    def difference(self, other: "TableSpec") -> str:
        """Return the fields in which two specs differ, as ``field: mine, theirs``.

        >>> TableSpec(name="t", dim=4).difference(TableSpec(name="t", dim=8))
        'dim: 4 against 8'
        """
        return _difference(self, other)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A dense table's spec: a named vector that is split over the shards.

    Its name is of the same space as those of sparse tables: one name is one table.

    Attributes:
        name: as of a ``TableSpec``.
        length: floats of the vector, from 0. Shard s of S holds those from length * s // S to
            length * (s + 1) // S.
        optimizer: the rule that a push applies. Refused are those whose step of one weight depends
            on others, since the result would depend on the number of shards.
    """

    name: str
    length: int
    optimizer: str = "sgd:lr=0.05"

    def __post_init__(self) -> None:
        """Refuse a field that is out of range."""
        _check_name(self.name)
        _check_number(self.name, "length", self.length, 0, DENSE_LENGTH_MAX)

    def difference(self, other: "DenseSpec") -> str:
        """Return the fields in which two specs differ, as ``field: mine, theirs``."""
        return _difference(self, other)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "table name must be 1 to 64 letters, digits or _ . - and begin with a letter "
            f"or digit, got {name!r}"
        )


def _check_number(name: str, field: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(
            f"table {name!r}: {field} must be an integer in [{low}, {high}], got {value!r}"
        )


def _check_word(name: str, field: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        raise ConfigError(
            f"table {name!r}: {field}: unknown value {value!r}; {nearest(str(value), words)}"
        )


def _difference(mine: TableSpec | DenseSpec, other: TableSpec | DenseSpec) -> str:
    """Return the fields in which two specs of one kind differ."""
    pairs = (
        (field.name, getattr(mine, field.name), getattr(other, field.name))
        for field in dataclasses.fields(mine)
    )
    return "; ".join(f"{name}: {this} against {that}" for name, this, that in pairs if this != that)
