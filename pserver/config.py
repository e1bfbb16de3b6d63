"""How one process runs: its settings, each with its one default and its range; and the limits.

Rooms before and after: ``cli`` fills these from flags, environment and TOML; ``server.app`` and
``client`` read them. What a table *is* stands in ``spec``.
"""

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from pserver.config_trace import TraceSettings
from pserver.ordinal import ordinal_if_auto
from pserver.settings import Settings

PART_BYTES_MAX = 4 << 20
"""A request or reply with larger blocks is cut into parts of at most this size (plus a few hundred
bytes of names). 4 MiB: four in flight are 16 MiB, and one takes an event loop under 2 ms."""

MESSAGE_BYTES_MAX = PART_BYTES_MAX + (1 << 20)
"""The most that either side accepts in one message: a part, and room for the names of tables."""

HOLD_S = 0.5
"""How long a server holds a request that waits for other trainers before its sender is told to ask
again. Under a client's timeouts, so that a wait never looks like a server that does not answer."""

TRAINERS_MAX = 1024
"""Trainers of one group at most: a shard keeps under 2 KiB of each."""

ENDPOINTS_MAX = 1024
"""Servers of one cluster at most: one partition each."""


class TlsSettings(Settings):
    """The files of mutual TLS: all three, or none. They are read again when they change."""

    tls_cert: Annotated[
        str | None,
        Field(description="PEM file with the certificate of this process; none: no TLS"),
    ] = None
    tls_key: Annotated[str | None, Field(description="PEM file with its key")] = None
    tls_ca: Annotated[
        str | None,
        Field(
            description="PEM file with the authorities whose certificates the other side may show"
        ),
    ] = None

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        """Refuse a part of the three."""
        files = {n: getattr(self, n) for n in ("tls_cert", "tls_key", "tls_ca")}
        missing = [name for name, file in files.items() if file is None]
        if 0 < len(missing) < len(files):
            raise ValueError(
                f"TLS takes tls_cert, tls_key and tls_ca together: {', '.join(missing)} missing"
            )
        return self


class AccessSettings(TlsSettings):
    """What a client shows its servers."""

    token_file: Annotated[
        str | None,
        Field(description="file with the token that is sent with each call; none: no token"),
    ] = None


class ServeSettings(TraceSettings, TlsSettings):
    """One pserver process."""

    shard: Annotated[
        int,
        BeforeValidator(ordinal_if_auto),
        Field(
            ge=0,
            description="index of this shard, from 0; auto: the number that ends the host's name",
        ),
    ] = 0
    shards: Annotated[
        int, Field(ge=1, le=ENDPOINTS_MAX, description="how many shards the cluster has")
    ] = 1
    bind: Annotated[str, Field(description="HOST:PORT to listen on; port 0 takes a free one")] = (
        "127.0.0.1:6170"
    )
    metrics_bind: Annotated[
        str | None, Field(description="HOST:PORT of the Prometheus page; none when not given")
    ] = None
    token_file: Annotated[
        str | None,
        Field(description="TOML file of tokens and their roles; none: everybody may do everything"),
    ] = None
    insecure_bind: Annotated[
        bool,
        Field(description="listen beyond this machine though TLS or tokens are not given"),
    ] = False
    table_rows_max: Annotated[
        int | None,
        Field(
            ge=1, description="rows that each table may have on this shard; none: its capacity_max"
        ),
    ] = None
    table_bytes_max: Annotated[
        int | None,
        Field(ge=1, description="bytes that each table may take on this shard; none: any"),
    ] = None
    new_rows_per_minute: Annotated[
        int | None,
        Field(ge=1, description="new rows a table and minute on this shard; none: any"),
    ] = None
    new_rows_per_call: Annotated[
        int | None,
        Field(ge=1, description="new rows a table and request; none: any"),
    ] = None
    on_full: Annotated[
        Literal["deny", "evict"],
        Field(
            description="at table_rows_max or table_bytes_max: refuse new rows, or let the rows go that "
            "were written longest ago (of tables made from then on)"
        ),
    ] = "deny"
    drain_s: Annotated[
        float,
        Field(ge=0.0, le=3600.0, description="seconds that calls in flight get after SIGTERM"),
    ] = 30.0
    queue_max: Annotated[
        int,
        Field(
            ge=1,
            le=65536,
            description="requests that may wait for the owner thread; more are refused for now",
        ),
    ] = 256
    checkpoint_dir: Annotated[
        str | None,
        Field(
            description="folder of checkpoints, one for all shards; none: saves and loads are refused"
        ),
    ] = None
    restore: Annotated[
        str | None,
        Field(
            description="begin with this version and the journal behind it: latest, a name or a "
            "number; none: begin empty"
        ),
    ] = None
    read_only: Annotated[
        bool, Field(description="serve the restored version and refuse every change")
    ] = False
    unknown_reads: Annotated[
        Literal["table", "first", "zeros"],
        Field(
            description="what keys without a row read as: what their table says, the first weights "
            "that they would get, or zeros; read-only"
        ),
    ] = "table"
    follow: Annotated[
        bool, Field(description="take newer versions of checkpoint_dir as they come; read-only")
    ] = False
    journal: Annotated[
        str | None,
        Field(
            description="folder of this shard's journal: what it acknowledged outlives the process"
        ),
    ] = None
    fsync: Annotated[
        Literal["always", "interval", "off"],
        Field(
            description="when the journal is on the disk: before replies, soon after, at leisure"
        ),
    ] = "interval"
    fsync_interval_ms: Annotated[
        float,
        Field(ge=1.0, le=60_000.0, description="milliseconds between two syncs of the journal"),
    ] = 100.0
    standby_of: Annotated[
        str | None,
        Field(description="HOST:PORT of the server to follow; it takes no requests until promoted"),
    ] = None
    standby_token_file: Annotated[
        str | None,
        Field(description="file with an admin token of the server to follow; none: no token"),
    ] = None
    acknowledge: Annotated[
        Literal["local", "standby"],
        Field(description="standby: replies wait until the standby has what they acknowledge"),
    ] = "local"
    rule: Annotated[
        str | None,
        Field(description="optimizers of your own, as FILE.py:NAME,...; every shard needs them"),
    ] = None
    storage_dir: Annotated[
        str | None,
        Field(description="folder for tables whose storage is file; none: they are refused"),
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="least level of a log line")
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Field(description="form of log lines: text, or an object a line")
    ] = "text"

    @model_validator(mode="after")
    def _check_quotas(self) -> Self:
        """Refuse what to do at a limit that there is not."""
        if self.on_full == "evict" and self.table_rows_max is None and self.table_bytes_max is None:
            raise ValueError("on_full evict needs table_rows_max or table_bytes_max: what is full")
        return self

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse settings that would have no effect."""
        if self.restore not in (None, "none") and self.checkpoint_dir is None:
            if self.journal is None:
                raise ValueError("restore needs checkpoint_dir or journal: where to load from")
            if self.restore != "latest":
                raise ValueError("restore of a version needs checkpoint_dir: where versions lie")
        if self.journal is None and (self.standby_of or self.acknowledge != "local"):
            raise ValueError("standby_of and acknowledge need journal: what a standby follows")
        if self.standby_token_file and self.standby_of is None:
            raise ValueError(
                "standby_token_file needs standby_of: the server that is shown the token"
            )
        if self.standby_of and self.restore not in (None, "none", "latest"):
            raise ValueError("standby_of takes no version to restore: it follows the other server")
        if self.read_only and (self.restore in (None, "none") or self.journal is not None):
            raise ValueError("read_only needs restore, what to serve, and takes no journal")
        if not self.read_only and (self.follow or self.unknown_reads != "table"):
            raise ValueError(
                "follow and unknown_reads need read_only: a newer version would undo what was pushed, "
                "and trainers read what their tables say"
            )
        fields = type(self).model_fields
        is_default = all(
            getattr(self, name) == fields[name].default for name in ("fsync", "fsync_interval_ms")
        )
        if self.journal is None and not is_default:
            raise ValueError("fsync and fsync_interval_ms need journal: the folder that is synced")
        return self


class ClientSettings(AccessSettings):
    """How a client talks to its servers."""

    timeout_s: Annotated[
        float,
        Field(gt=0.0, le=86400.0, description="seconds a call may take, retries included"),
    ] = 60.0
    try_timeout_s: Annotated[
        float, Field(gt=0.0, le=86400.0, description="seconds before one try is given up")
    ] = 20.0
    retry: Annotated[
        int,
        Field(
            ge=0,
            le=1000,
            description="failed tries of a request before a warning names the server; they go on",
        ),
    ] = 3
    promote_after_s: Annotated[
        float | None,
        Field(
            gt=0.0,
            le=86400.0,
            description="seconds without an answer after which a server's standby is told to take its "
            "place; none: never",
        ),
    ] = None
    send_queue_size: Annotated[
        int, Field(ge=1, le=65536, description="requests to one shard that may wait or be open")
    ] = 32
    send_queue_bytes: Annotated[
        int, Field(ge=1, le=1 << 40, description="bytes to one shard that may wait or be open")
    ] = 64 << 20
    window: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="requests to one shard on the wire at once; 1 makes a run reproducible",
        ),
    ] = 4
    on_restart: Annotated[
        Literal["fail", "go_on"],
        Field(
            description="when a server comes back without what it held: end, or make its tables anew"
        ),
    ] = "fail"


class GroupSettings(Settings):
    """How a trainer joins its group.

    The same for all trainers: mode, trainers, max_staleness, staleness_lr, and in mode sync also
    sync_divisor, on_missing and barrier_timeout.
    """

    mode: Annotated[
        Literal["sync", "async", "half_async", "geo"],
        Field(description="how trainers' pushes come together"),
    ] = "async"
    trainer_id: Annotated[int, Field(ge=0, description="of this trainer, from 0")] = 0
    trainers: Annotated[int, Field(ge=1, le=TRAINERS_MAX, description="of the job")] = 1
    sync_divisor: Annotated[
        Literal["contributors", "registered", "samples"],
        Field(description="what a round's summed gradients are divided by"),
    ] = "contributors"
    on_missing: Annotated[
        Literal["fail", "drop", "wait"],
        Field(description="when a trainer is missing at the barrier's end"),
    ] = "fail"
    barrier_timeout: Annotated[
        float, Field(gt=0.0, le=86400.0, description="seconds that a round waits for parts")
    ] = 300.0
    max_staleness: Annotated[
        int | None,
        Field(ge=0, le=1 << 40, description="steps a trainer may be ahead of the slowest"),
    ] = None
    staleness_lr: Annotated[
        Literal["none", "inverse"],
        Field(description="inverse: a push that is s versions old counts 1 / (1 + s)"),
    ] = "none"
    lease_s: Annotated[
        float,
        Field(gt=0.0, le=3600.0, description="seconds unheard of until it is taken for gone"),
    ] = 10.0

    @model_validator(mode="after")
    def _check_id(self) -> Self:
        """Refuse an id that is not one of the group's."""
        if self.trainer_id >= self.trainers:
            raise ValueError(
                f"trainer_id must be in [0, {self.trainers - 1}] with {self.trainers} trainers"
            )
        return self
