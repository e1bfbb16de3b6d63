from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TableSpec(_message.Message):
    __slots__ = ("name", "dim", "optimizer", "initializer", "seed", "capacity_max", "accessor", "embedx_optimizer", "admission", "on_nan", "unknown_reads", "ttl_days", "evict", "row_dtype", "storage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_MAX_FIELD_NUMBER: _ClassVar[int]
    ACCESSOR_FIELD_NUMBER: _ClassVar[int]
    EMBEDX_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    ADMISSION_FIELD_NUMBER: _ClassVar[int]
    ON_NAN_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_READS_FIELD_NUMBER: _ClassVar[int]
    TTL_DAYS_FIELD_NUMBER: _ClassVar[int]
    EVICT_FIELD_NUMBER: _ClassVar[int]
    ROW_DTYPE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    optimizer: str
    initializer: str
    seed: int
    capacity_max: int
    accessor: str
    embedx_optimizer: str
    admission: str
    on_nan: str
    unknown_reads: str
    ttl_days: int
    evict: str
    row_dtype: str
    storage: str
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., optimizer: _Optional[str] = ..., initializer: _Optional[str] = ..., seed: _Optional[int] = ..., capacity_max: _Optional[int] = ..., accessor: _Optional[str] = ..., embedx_optimizer: _Optional[str] = ..., admission: _Optional[str] = ..., on_nan: _Optional[str] = ..., unknown_reads: _Optional[str] = ..., ttl_days: _Optional[int] = ..., evict: _Optional[str] = ..., row_dtype: _Optional[str] = ..., storage: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("wire_version", "package_version", "shard_index", "num_shards", "incarnation", "num_partitions", "placement_version", "state", "tables", "dense_tables", "term")
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKAGE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARD_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_SHARDS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUM_PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    DENSE_TABLES_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    wire_version: int
    package_version: str
    shard_index: int
    num_shards: int
    incarnation: int
    num_partitions: int
    placement_version: int
    state: str
    tables: _containers.RepeatedCompositeFieldContainer[TableSpec]
    dense_tables: _containers.RepeatedCompositeFieldContainer[DenseSpec]
    term: int
    def __init__(self, wire_version: _Optional[int] = ..., package_version: _Optional[str] = ..., shard_index: _Optional[int] = ..., num_shards: _Optional[int] = ..., incarnation: _Optional[int] = ..., num_partitions: _Optional[int] = ..., placement_version: _Optional[int] = ..., state: _Optional[str] = ..., tables: _Optional[_Iterable[_Union[TableSpec, _Mapping]]] = ..., dense_tables: _Optional[_Iterable[_Union[DenseSpec, _Mapping]]] = ..., term: _Optional[int] = ...) -> None: ...

class CreateTableRequest(_message.Message):
    __slots__ = ("incarnation", "spec")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    spec: TableSpec
    def __init__(self, incarnation: _Optional[int] = ..., spec: _Optional[_Union[TableSpec, _Mapping]] = ...) -> None: ...

class DenseSpec(_message.Message):
    __slots__ = ("name", "length", "optimizer")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    name: str
    length: int
    optimizer: str
    def __init__(self, name: _Optional[str] = ..., length: _Optional[int] = ..., optimizer: _Optional[str] = ...) -> None: ...

class CreateDenseRequest(_message.Message):
    __slots__ = ("incarnation", "spec")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    spec: DenseSpec
    def __init__(self, incarnation: _Optional[int] = ..., spec: _Optional[_Union[DenseSpec, _Mapping]] = ...) -> None: ...

class CreateDenseReply(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: DenseSpec
    def __init__(self, spec: _Optional[_Union[DenseSpec, _Mapping]] = ...) -> None: ...

class DenseWrite(_message.Message):
    __slots__ = ("incarnation", "trainer", "counter", "more", "table", "part", "force", "values")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    trainer: bytes
    counter: int
    more: bool
    table: str
    part: int
    force: bool
    values: bytes
    def __init__(self, incarnation: _Optional[int] = ..., trainer: _Optional[bytes] = ..., counter: _Optional[int] = ..., more: _Optional[bool] = ..., table: _Optional[str] = ..., part: _Optional[int] = ..., force: _Optional[bool] = ..., values: _Optional[bytes] = ...) -> None: ...

class DenseWriteReply(_message.Message):
    __slots__ = ("duplicate", "version")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    version: int
    def __init__(self, duplicate: _Optional[bool] = ..., version: _Optional[int] = ...) -> None: ...

class PullDenseRequest(_message.Message):
    __slots__ = ("incarnation", "table", "part", "known", "trainer", "round", "wait")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    table: str
    part: int
    known: int
    trainer: bytes
    round: int
    wait: bool
    def __init__(self, incarnation: _Optional[int] = ..., table: _Optional[str] = ..., part: _Optional[int] = ..., known: _Optional[int] = ..., trainer: _Optional[bytes] = ..., round: _Optional[int] = ..., wait: _Optional[bool] = ...) -> None: ...

class PullDenseReply(_message.Message):
    __slots__ = ("is_unchanged", "version", "change", "values")
    IS_UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    is_unchanged: bool
    version: int
    change: int
    values: bytes
    def __init__(self, is_unchanged: _Optional[bool] = ..., version: _Optional[int] = ..., change: _Optional[int] = ..., values: _Optional[bytes] = ...) -> None: ...

class CreateTableReply(_message.Message):
    __slots__ = ("spec",)
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: TableSpec
    def __init__(self, spec: _Optional[_Union[TableSpec, _Mapping]] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("incarnation", "tables", "trainer", "round")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    tables: _containers.RepeatedCompositeFieldContainer[TablePull]
    trainer: bytes
    round: int
    def __init__(self, incarnation: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TablePull, _Mapping]]] = ..., trainer: _Optional[bytes] = ..., round: _Optional[int] = ...) -> None: ...

class TablePull(_message.Message):
    __slots__ = ("table", "create", "shown", "pad", "keys")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    table: str
    create: bool
    shown: bool
    pad: bytes
    keys: bytes
    def __init__(self, table: _Optional[str] = ..., create: _Optional[bool] = ..., shown: _Optional[bool] = ..., pad: _Optional[bytes] = ..., keys: _Optional[bytes] = ...) -> None: ...

class PullReply(_message.Message):
    __slots__ = ("tables",)
    TABLES_FIELD_NUMBER: _ClassVar[int]
    tables: _containers.RepeatedCompositeFieldContainer[TableRows]
    def __init__(self, tables: _Optional[_Iterable[_Union[TableRows, _Mapping]]] = ...) -> None: ...

class TableRows(_message.Message):
    __slots__ = ("version", "pad", "weights", "shows", "clicks")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SHOWS_FIELD_NUMBER: _ClassVar[int]
    CLICKS_FIELD_NUMBER: _ClassVar[int]
    version: int
    pad: bytes
    weights: bytes
    shows: bytes
    clicks: bytes
    def __init__(self, version: _Optional[int] = ..., pad: _Optional[bytes] = ..., weights: _Optional[bytes] = ..., shows: _Optional[bytes] = ..., clicks: _Optional[bytes] = ...) -> None: ...

class PushRequest(_message.Message):
    __slots__ = ("incarnation", "trainer", "counter", "more", "tables", "round", "samples", "messages", "position")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    trainer: bytes
    counter: int
    more: bool
    tables: _containers.RepeatedCompositeFieldContainer[TablePush]
    round: int
    samples: int
    messages: int
    position: int
    def __init__(self, incarnation: _Optional[int] = ..., trainer: _Optional[bytes] = ..., counter: _Optional[int] = ..., more: _Optional[bool] = ..., tables: _Optional[_Iterable[_Union[TablePush, _Mapping]]] = ..., round: _Optional[int] = ..., samples: _Optional[int] = ..., messages: _Optional[int] = ..., position: _Optional[int] = ...) -> None: ...

class TablePush(_message.Message):
    __slots__ = ("table", "dense_part", "pulled", "pad", "keys", "values", "counts", "shows", "clicks", "slots")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DENSE_PART_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    PAD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SHOWS_FIELD_NUMBER: _ClassVar[int]
    CLICKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    table: str
    dense_part: int
    pulled: int
    pad: bytes
    keys: bytes
    values: bytes
    counts: bytes
    shows: bytes
    clicks: bytes
    slots: bytes
    def __init__(self, table: _Optional[str] = ..., dense_part: _Optional[int] = ..., pulled: _Optional[int] = ..., pad: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., values: _Optional[bytes] = ..., counts: _Optional[bytes] = ..., shows: _Optional[bytes] = ..., clicks: _Optional[bytes] = ..., slots: _Optional[bytes] = ...) -> None: ...

class PushReply(_message.Message):
    __slots__ = ("duplicate", "versions", "staleness")
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    duplicate: bool
    versions: _containers.RepeatedScalarFieldContainer[int]
    staleness: int
    def __init__(self, duplicate: _Optional[bool] = ..., versions: _Optional[_Iterable[int]] = ..., staleness: _Optional[int] = ...) -> None: ...

class PullChangedRequest(_message.Message):
    __slots__ = ("incarnation", "table", "trainer", "ack")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    table: str
    trainer: bytes
    ack: int
    def __init__(self, incarnation: _Optional[int] = ..., table: _Optional[str] = ..., trainer: _Optional[bytes] = ..., ack: _Optional[int] = ...) -> None: ...

class PullChangedReply(_message.Message):
    __slots__ = ("position", "is_all", "more", "keys")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IS_ALL_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    position: int
    is_all: bool
    more: bool
    keys: bytes
    def __init__(self, position: _Optional[int] = ..., is_all: _Optional[bool] = ..., more: _Optional[bool] = ..., keys: _Optional[bytes] = ...) -> None: ...

class GroupSpec(_message.Message):
    __slots__ = ("mode", "trainers", "sync_divisor", "on_missing", "barrier_timeout", "max_staleness", "staleness_lr")
    MODE_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    SYNC_DIVISOR_FIELD_NUMBER: _ClassVar[int]
    ON_MISSING_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_FIELD_NUMBER: _ClassVar[int]
    STALENESS_LR_FIELD_NUMBER: _ClassVar[int]
    mode: str
    trainers: int
    sync_divisor: str
    on_missing: str
    barrier_timeout: float
    max_staleness: int
    staleness_lr: str
    def __init__(self, mode: _Optional[str] = ..., trainers: _Optional[int] = ..., sync_divisor: _Optional[str] = ..., on_missing: _Optional[str] = ..., barrier_timeout: _Optional[float] = ..., max_staleness: _Optional[int] = ..., staleness_lr: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("incarnation", "trainer", "trainer_id", "group", "lease_s", "host", "first_round")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    trainer: bytes
    trainer_id: int
    group: GroupSpec
    lease_s: float
    host: str
    first_round: int
    def __init__(self, incarnation: _Optional[int] = ..., trainer: _Optional[bytes] = ..., trainer_id: _Optional[int] = ..., group: _Optional[_Union[GroupSpec, _Mapping]] = ..., lease_s: _Optional[float] = ..., host: _Optional[str] = ..., first_round: _Optional[int] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("open_round", "trainer_incarnation", "trainers_here")
    OPEN_ROUND_FIELD_NUMBER: _ClassVar[int]
    TRAINER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_HERE_FIELD_NUMBER: _ClassVar[int]
    open_round: int
    trainer_incarnation: int
    trainers_here: int
    def __init__(self, open_round: _Optional[int] = ..., trainer_incarnation: _Optional[int] = ..., trainers_here: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("incarnation", "trainer", "step", "loss", "auc", "samples_per_s")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    AUC_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    trainer: bytes
    step: int
    loss: float
    auc: float
    samples_per_s: float
    def __init__(self, incarnation: _Optional[int] = ..., trainer: _Optional[bytes] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., auc: _Optional[float] = ..., samples_per_s: _Optional[float] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("trainers_here",)
    TRAINERS_HERE_FIELD_NUMBER: _ClassVar[int]
    trainers_here: int
    def __init__(self, trainers_here: _Optional[int] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("incarnation", "trainer")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    trainer: bytes
    def __init__(self, incarnation: _Optional[int] = ..., trainer: _Optional[bytes] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("incarnation", "trainer", "epoch", "rows", "range_rows", "done", "question", "may_wait")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RANGE_ROWS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    MAY_WAIT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    trainer: bytes
    epoch: int
    rows: int
    range_rows: int
    done: _containers.RepeatedScalarFieldContainer[int]
    question: int
    may_wait: bool
    def __init__(self, incarnation: _Optional[int] = ..., trainer: _Optional[bytes] = ..., epoch: _Optional[int] = ..., rows: _Optional[int] = ..., range_rows: _Optional[int] = ..., done: _Optional[_Iterable[int]] = ..., question: _Optional[int] = ..., may_wait: _Optional[bool] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("state", "range", "lost", "num_done", "num_ranges")
    STATE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    NUM_DONE_FIELD_NUMBER: _ClassVar[int]
    NUM_RANGES_FIELD_NUMBER: _ClassVar[int]
    state: str
    range: int
    lost: _containers.RepeatedScalarFieldContainer[int]
    num_done: int
    num_ranges: int
    def __init__(self, state: _Optional[str] = ..., range: _Optional[int] = ..., lost: _Optional[_Iterable[int]] = ..., num_done: _Optional[int] = ..., num_ranges: _Optional[int] = ...) -> None: ...

class StatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatsReply(_message.Message):
    __slots__ = ("server", "uptime_s", "cpu_s", "memory_bytes", "tables", "methods", "queued", "pushes_applied", "pushes_duplicate", "dense_tables", "group", "checkpoint", "checkpoint_age_s")
    SERVER_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    METHODS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_APPLIED_FIELD_NUMBER: _ClassVar[int]
    PUSHES_DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    DENSE_TABLES_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    server: DescribeReply
    uptime_s: float
    cpu_s: float
    memory_bytes: int
    tables: _containers.RepeatedCompositeFieldContainer[TableStats]
    methods: _containers.RepeatedCompositeFieldContainer[MethodStats]
    queued: int
    pushes_applied: int
    pushes_duplicate: int
    dense_tables: _containers.RepeatedCompositeFieldContainer[DenseStats]
    group: GroupStats
    checkpoint: str
    checkpoint_age_s: float
    def __init__(self, server: _Optional[_Union[DescribeReply, _Mapping]] = ..., uptime_s: _Optional[float] = ..., cpu_s: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableStats, _Mapping]]] = ..., methods: _Optional[_Iterable[_Union[MethodStats, _Mapping]]] = ..., queued: _Optional[int] = ..., pushes_applied: _Optional[int] = ..., pushes_duplicate: _Optional[int] = ..., dense_tables: _Optional[_Iterable[_Union[DenseStats, _Mapping]]] = ..., group: _Optional[_Union[GroupStats, _Mapping]] = ..., checkpoint: _Optional[str] = ..., checkpoint_age_s: _Optional[float] = ...) -> None: ...

class GroupStats(_message.Message):
    __slots__ = ("group", "open_round", "missing", "parked_bytes", "trainers", "failure")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPEN_ROUND_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    PARKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    group: GroupSpec
    open_round: int
    missing: _containers.RepeatedScalarFieldContainer[int]
    parked_bytes: int
    trainers: _containers.RepeatedCompositeFieldContainer[TrainerStats]
    failure: str
    def __init__(self, group: _Optional[_Union[GroupSpec, _Mapping]] = ..., open_round: _Optional[int] = ..., missing: _Optional[_Iterable[int]] = ..., parked_bytes: _Optional[int] = ..., trainers: _Optional[_Iterable[_Union[TrainerStats, _Mapping]]] = ..., failure: _Optional[str] = ...) -> None: ...

class TrainerStats(_message.Message):
    __slots__ = ("trainer_id", "trainer_incarnation", "state", "host", "step", "loss", "last_round", "last_seen_s", "pushes", "staleness_p50", "staleness_p99", "staleness_max", "auc", "samples_per_s")
    TRAINER_ID_FIELD_NUMBER: _ClassVar[int]
    TRAINER_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LAST_ROUND_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_S_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P50_FIELD_NUMBER: _ClassVar[int]
    STALENESS_P99_FIELD_NUMBER: _ClassVar[int]
    STALENESS_MAX_FIELD_NUMBER: _ClassVar[int]
    AUC_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    trainer_id: int
    trainer_incarnation: int
    state: str
    host: str
    step: int
    loss: float
    last_round: int
    last_seen_s: float
    pushes: int
    staleness_p50: int
    staleness_p99: int
    staleness_max: int
    auc: float
    samples_per_s: float
    def __init__(self, trainer_id: _Optional[int] = ..., trainer_incarnation: _Optional[int] = ..., state: _Optional[str] = ..., host: _Optional[str] = ..., step: _Optional[int] = ..., loss: _Optional[float] = ..., last_round: _Optional[int] = ..., last_seen_s: _Optional[float] = ..., pushes: _Optional[int] = ..., staleness_p50: _Optional[int] = ..., staleness_p99: _Optional[int] = ..., staleness_max: _Optional[int] = ..., auc: _Optional[float] = ..., samples_per_s: _Optional[float] = ...) -> None: ...

class DenseStats(_message.Message):
    __slots__ = ("table", "length", "bytes", "version", "epoch")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    table: str
    length: int
    bytes: int
    version: int
    epoch: int
    def __init__(self, table: _Optional[str] = ..., length: _Optional[int] = ..., bytes: _Optional[int] = ..., version: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class TableStats(_message.Message):
    __slots__ = ("table", "rows", "bytes", "version", "keys_pulled", "keys_pushed", "occurrences_pushed", "embedx_rows", "keys_waiting", "keys_unadmitted", "filter_bytes", "bad_pushes", "bad_pushes_of", "stopped", "evicted", "shrunk", "day")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_PULLED_FIELD_NUMBER: _ClassVar[int]
    KEYS_PUSHED_FIELD_NUMBER: _ClassVar[int]
    OCCURRENCES_PUSHED_FIELD_NUMBER: _ClassVar[int]
    EMBEDX_ROWS_FIELD_NUMBER: _ClassVar[int]
    KEYS_WAITING_FIELD_NUMBER: _ClassVar[int]
    KEYS_UNADMITTED_FIELD_NUMBER: _ClassVar[int]
    FILTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    BAD_PUSHES_FIELD_NUMBER: _ClassVar[int]
    BAD_PUSHES_OF_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    SHRUNK_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    table: str
    rows: int
    bytes: int
    version: int
    keys_pulled: int
    keys_pushed: int
    occurrences_pushed: int
    embedx_rows: int
    keys_waiting: int
    keys_unadmitted: int
    filter_bytes: int
    bad_pushes: int
    bad_pushes_of: _containers.RepeatedCompositeFieldContainer[BadPushes]
    stopped: str
    evicted: int
    shrunk: int
    day: int
    def __init__(self, table: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., version: _Optional[int] = ..., keys_pulled: _Optional[int] = ..., keys_pushed: _Optional[int] = ..., occurrences_pushed: _Optional[int] = ..., embedx_rows: _Optional[int] = ..., keys_waiting: _Optional[int] = ..., keys_unadmitted: _Optional[int] = ..., filter_bytes: _Optional[int] = ..., bad_pushes: _Optional[int] = ..., bad_pushes_of: _Optional[_Iterable[_Union[BadPushes, _Mapping]]] = ..., stopped: _Optional[str] = ..., evicted: _Optional[int] = ..., shrunk: _Optional[int] = ..., day: _Optional[int] = ...) -> None: ...

class BadPushes(_message.Message):
    __slots__ = ("trainer", "pushes", "last")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    trainer: str
    pushes: int
    last: str
    def __init__(self, trainer: _Optional[str] = ..., pushes: _Optional[int] = ..., last: _Optional[str] = ...) -> None: ...

class MethodStats(_message.Message):
    __slots__ = ("method", "calls", "errors", "calls_per_s", "p50_s", "p99_s", "max_s")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    CALLS_PER_S_FIELD_NUMBER: _ClassVar[int]
    P50_S_FIELD_NUMBER: _ClassVar[int]
    P99_S_FIELD_NUMBER: _ClassVar[int]
    MAX_S_FIELD_NUMBER: _ClassVar[int]
    method: str
    calls: int
    errors: int
    calls_per_s: float
    p50_s: float
    p99_s: float
    max_s: float
    def __init__(self, method: _Optional[str] = ..., calls: _Optional[int] = ..., errors: _Optional[int] = ..., calls_per_s: _Optional[float] = ..., p50_s: _Optional[float] = ..., p99_s: _Optional[float] = ..., max_s: _Optional[float] = ...) -> None: ...

class TableRequest(_message.Message):
    __slots__ = ("incarnation", "table", "request")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    table: str
    request: int
    def __init__(self, incarnation: _Optional[int] = ..., table: _Optional[str] = ..., request: _Optional[int] = ...) -> None: ...

class GoneReply(_message.Message):
    __slots__ = ("was_there", "rows", "bytes")
    WAS_THERE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    was_there: bool
    rows: int
    bytes: int
    def __init__(self, was_there: _Optional[bool] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ShrinkRequest(_message.Message):
    __slots__ = ("incarnation", "table", "day", "dry", "walk")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    DAY_FIELD_NUMBER: _ClassVar[int]
    DRY_FIELD_NUMBER: _ClassVar[int]
    WALK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    table: str
    day: int
    dry: bool
    walk: int
    def __init__(self, incarnation: _Optional[int] = ..., table: _Optional[str] = ..., day: _Optional[int] = ..., dry: _Optional[bool] = ..., walk: _Optional[int] = ...) -> None: ...

class ShrinkReply(_message.Message):
    __slots__ = ("is_done", "is_past", "last_day", "rows", "gone", "gone_bytes", "by_score", "by_age", "has_scores", "edges", "all_counts", "gone_counts")
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    IS_PAST_FIELD_NUMBER: _ClassVar[int]
    LAST_DAY_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    GONE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BY_SCORE_FIELD_NUMBER: _ClassVar[int]
    BY_AGE_FIELD_NUMBER: _ClassVar[int]
    HAS_SCORES_FIELD_NUMBER: _ClassVar[int]
    EDGES_FIELD_NUMBER: _ClassVar[int]
    ALL_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GONE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    is_done: bool
    is_past: bool
    last_day: int
    rows: int
    gone: int
    gone_bytes: int
    by_score: int
    by_age: int
    has_scores: bool
    edges: _containers.RepeatedScalarFieldContainer[float]
    all_counts: _containers.RepeatedScalarFieldContainer[int]
    gone_counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, is_done: _Optional[bool] = ..., is_past: _Optional[bool] = ..., last_day: _Optional[int] = ..., rows: _Optional[int] = ..., gone: _Optional[int] = ..., gone_bytes: _Optional[int] = ..., by_score: _Optional[int] = ..., by_age: _Optional[int] = ..., has_scores: _Optional[bool] = ..., edges: _Optional[_Iterable[float]] = ..., all_counts: _Optional[_Iterable[int]] = ..., gone_counts: _Optional[_Iterable[int]] = ...) -> None: ...

class TopKeysRequest(_message.Message):
    __slots__ = ("incarnation", "table", "by", "count", "walk")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    WALK_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    table: str
    by: str
    count: int
    walk: int
    def __init__(self, incarnation: _Optional[int] = ..., table: _Optional[str] = ..., by: _Optional[str] = ..., count: _Optional[int] = ..., walk: _Optional[int] = ...) -> None: ...

class TopKeysReply(_message.Message):
    __slots__ = ("is_done", "keys", "values", "missed", "seen")
    IS_DONE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    MISSED_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    is_done: bool
    keys: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    missed: float
    seen: float
    def __init__(self, is_done: _Optional[bool] = ..., keys: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ..., missed: _Optional[float] = ..., seen: _Optional[float] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("incarnation", "table", "key")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    table: str
    key: int
    def __init__(self, incarnation: _Optional[int] = ..., table: _Optional[str] = ..., key: _Optional[int] = ...) -> None: ...

class InspectReply(_message.Message):
    __slots__ = ("has_row", "weights", "state", "epoch", "table_epoch", "version", "would_go", "why", "words", "counted", "score", "has_embedx", "is_waiting")
    HAS_ROW_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TABLE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WOULD_GO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    HAS_EMBEDX_FIELD_NUMBER: _ClassVar[int]
    IS_WAITING_FIELD_NUMBER: _ClassVar[int]
    has_row: bool
    weights: _containers.RepeatedScalarFieldContainer[float]
    state: _containers.RepeatedCompositeFieldContainer[StatePart]
    epoch: int
    table_epoch: int
    version: int
    would_go: bool
    why: str
    words: _containers.RepeatedCompositeFieldContainer[Word]
    counted: _containers.RepeatedCompositeFieldContainer[Word]
    score: float
    has_embedx: bool
    is_waiting: bool
    def __init__(self, has_row: _Optional[bool] = ..., weights: _Optional[_Iterable[float]] = ..., state: _Optional[_Iterable[_Union[StatePart, _Mapping]]] = ..., epoch: _Optional[int] = ..., table_epoch: _Optional[int] = ..., version: _Optional[int] = ..., would_go: _Optional[bool] = ..., why: _Optional[str] = ..., words: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., counted: _Optional[_Iterable[_Union[Word, _Mapping]]] = ..., score: _Optional[float] = ..., has_embedx: _Optional[bool] = ..., is_waiting: _Optional[bool] = ...) -> None: ...

class Word(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class StatePart(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class GroupMarks(_message.Message):
    __slots__ = ("round", "trainers")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    round: int
    trainers: _containers.RepeatedCompositeFieldContainer[TrainerMark]
    def __init__(self, round: _Optional[int] = ..., trainers: _Optional[_Iterable[_Union[TrainerMark, _Mapping]]] = ...) -> None: ...

class TrainerMark(_message.Message):
    __slots__ = ("trainer", "pushes")
    TRAINER_FIELD_NUMBER: _ClassVar[int]
    PUSHES_FIELD_NUMBER: _ClassVar[int]
    trainer: bytes
    pushes: int
    def __init__(self, trainer: _Optional[bytes] = ..., pushes: _Optional[int] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("incarnation", "save_id", "step", "version", "mode", "epoch", "cut", "trainers", "name", "data", "more", "offset", "marks")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SAVE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    save_id: str
    step: str
    version: str
    mode: str
    epoch: int
    cut: str
    trainers: str
    name: str
    data: bytes
    more: bool
    offset: int
    marks: GroupMarks
    def __init__(self, incarnation: _Optional[int] = ..., save_id: _Optional[str] = ..., step: _Optional[str] = ..., version: _Optional[str] = ..., mode: _Optional[str] = ..., epoch: _Optional[int] = ..., cut: _Optional[str] = ..., trainers: _Optional[str] = ..., name: _Optional[str] = ..., data: _Optional[bytes] = ..., more: _Optional[bool] = ..., offset: _Optional[int] = ..., marks: _Optional[_Union[GroupMarks, _Mapping]] = ...) -> None: ...

class SaveReply(_message.Message):
    __slots__ = ("state", "error", "version", "epoch", "base", "rows", "bytes", "seconds", "longest_pause_s", "marks", "rows_max")
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    LONGEST_PAUSE_S_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    state: str
    error: str
    version: str
    epoch: int
    base: str
    rows: int
    bytes: int
    seconds: float
    longest_pause_s: float
    marks: GroupMarks
    rows_max: int
    def __init__(self, state: _Optional[str] = ..., error: _Optional[str] = ..., version: _Optional[str] = ..., epoch: _Optional[int] = ..., base: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., longest_pause_s: _Optional[float] = ..., marks: _Optional[_Union[GroupMarks, _Mapping]] = ..., rows_max: _Optional[int] = ...) -> None: ...

class LoadRequest(_message.Message):
    __slots__ = ("incarnation", "load_id", "step", "name", "offset", "version", "on_mismatch")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LOAD_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ON_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    load_id: str
    step: str
    name: str
    offset: int
    version: str
    on_mismatch: str
    def __init__(self, incarnation: _Optional[int] = ..., load_id: _Optional[str] = ..., step: _Optional[str] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ..., version: _Optional[str] = ..., on_mismatch: _Optional[str] = ...) -> None: ...

class LoadReply(_message.Message):
    __slots__ = ("state", "error", "version", "tables", "left", "rows", "bytes", "seconds", "rows_of_version", "state_taken", "state_tables", "trainers", "round", "data", "more", "positions")
    class PositionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    ROWS_OF_VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_TAKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_TABLES_FIELD_NUMBER: _ClassVar[int]
    TRAINERS_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    state: str
    error: str
    version: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    left: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    bytes: int
    seconds: float
    rows_of_version: int
    state_taken: int
    state_tables: int
    trainers: str
    round: int
    data: bytes
    more: bool
    positions: _containers.ScalarMap[int, int]
    def __init__(self, state: _Optional[str] = ..., error: _Optional[str] = ..., version: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., left: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., rows_of_version: _Optional[int] = ..., state_taken: _Optional[int] = ..., state_tables: _Optional[int] = ..., trainers: _Optional[str] = ..., round: _Optional[int] = ..., data: _Optional[bytes] = ..., more: _Optional[bool] = ..., positions: _Optional[_Mapping[int, int]] = ...) -> None: ...

class FeedRequest(_message.Message):
    __slots__ = ("after", "journal", "checksum", "wait_s", "hand_over", "standby", "heard", "promise_s", "term", "only_promise", "copy", "version", "file", "offset", "leave")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    HAND_OVER_FIELD_NUMBER: _ClassVar[int]
    STANDBY_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    PROMISE_S_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ONLY_PROMISE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    after: int
    journal: int
    checksum: int
    wait_s: float
    hand_over: bool
    standby: int
    heard: int
    promise_s: float
    term: int
    only_promise: bool
    copy: bool
    version: str
    file: str
    offset: int
    leave: bool
    def __init__(self, after: _Optional[int] = ..., journal: _Optional[int] = ..., checksum: _Optional[int] = ..., wait_s: _Optional[float] = ..., hand_over: _Optional[bool] = ..., standby: _Optional[int] = ..., heard: _Optional[int] = ..., promise_s: _Optional[float] = ..., term: _Optional[int] = ..., only_promise: _Optional[bool] = ..., copy: _Optional[bool] = ..., version: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., leave: _Optional[bool] = ...) -> None: ...

class FeedReply(_message.Message):
    __slots__ = ("journal", "begun_by", "first", "position", "records", "term", "number", "version", "data", "more")
    JOURNAL_FIELD_NUMBER: _ClassVar[int]
    BEGUN_BY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    journal: int
    begun_by: int
    first: int
    position: int
    records: bytes
    term: int
    number: int
    version: str
    data: bytes
    more: bool
    def __init__(self, journal: _Optional[int] = ..., begun_by: _Optional[int] = ..., first: _Optional[int] = ..., position: _Optional[int] = ..., records: _Optional[bytes] = ..., term: _Optional[int] = ..., number: _Optional[int] = ..., version: _Optional[str] = ..., data: _Optional[bytes] = ..., more: _Optional[bool] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("timeout_s",)
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    def __init__(self, timeout_s: _Optional[float] = ...) -> None: ...

class PromoteReply(_message.Message):
    __slots__ = ("position", "told", "heard_s", "handed_over", "term", "is_alone")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    HEARD_S_FIELD_NUMBER: _ClassVar[int]
    HANDED_OVER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    IS_ALONE_FIELD_NUMBER: _ClassVar[int]
    position: int
    told: int
    heard_s: float
    handed_over: bool
    term: int
    is_alone: bool
    def __init__(self, position: _Optional[int] = ..., told: _Optional[int] = ..., heard_s: _Optional[float] = ..., handed_over: _Optional[bool] = ..., term: _Optional[int] = ..., is_alone: _Optional[bool] = ...) -> None: ...
