"""A standalone parameter server for recommendation and CTR training: servers and their client.

>>> import pserver
>>> with pserver.embedded(2) as client:
...     spec = client.create_table(pserver.TableSpec(name="ads", dim=4, optimizer="sgd:lr=1"))
...     client.pull("ads", [1, 2, 1]).shape
(3, 4)
"""

from pserver import compile_cache  # noqa: F401 - before any module with a kernel
from pserver._version import __version__
from pserver.client.checkpoint import Checkpoints, LoadedVersion, Restored
from pserver.client.client import Client
from pserver.client.connect import connect
from pserver.client.delivery import Step
from pserver.client.dense import DensePulled
from pserver.client.geo import ChangedKeys, DeltaPush, Marks
from pserver.client.group import Group
from pserver.client.inputs import as_keys
from pserver.client.inspected import Inspected
from pserver.client.leases import Leases, RowRange
from pserver.client.pending import PendingPull, PendingPush
from pserver.client.revival import Lost
from pserver.client.saving import Saved, SaveProgress, Saving
from pserver.config import AccessSettings, ClientSettings, GroupSettings, ServeSettings
from pserver.config_trace import TraceSettings
from pserver.embedded import Cluster, embedded
from pserver.errors import (
    BarrierError,
    BusyError,
    CheckpointError,
    ClusterError,
    ConfigError,
    DeadlineError,
    DenseInitError,
    ForbiddenError,
    GroupError,
    InternalError,
    JournalError,
    NotFiniteError,
    NotYetError,
    OverloadedError,
    PserverError,
    QuotaError,
    RequestError,
    RestartedError,
    ShapeError,
    SpecMismatchError,
    StaleError,
    StandbyError,
    StorageError,
    SupersededError,
    TableFullError,
    TableStoppedError,
    TransientError,
    UnauthenticatedError,
    UnavailableError,
    UnknownTableError,
    nearest,
)
from pserver.kernel.dedupe import Distinct, dedupe
from pserver.logs import configure_logs, logs_are_json, tell_crash, tell_failure
from pserver.metrics import AnySeries, Series, SpreadSeries
from pserver.mix import GOLDEN, mix64
from pserver.occurrences import Occurrences
from pserver.options import USAGE_EXIT, CommandParser, Given, add_flags, resolve
from pserver.paddle import read_paddle
from pserver.placement import partition_of, shard_of
from pserver.server.metrics_page import start_page_of
from pserver.settings import Settings
from pserver.spec import DenseSpec, Rule, TableSpec, parse_rule
from pserver.spread import Spread
from pserver.table.local import LocalDense, LocalTable
from pserver.table.optimizer_file import load_rule, load_rules
from pserver.trace import Place, here, numbered, numbered_file, recording, span, traced, within

__all__ = [
    "GOLDEN",
    "USAGE_EXIT",
    "AccessSettings",
    "AnySeries",
    "BarrierError",
    "BusyError",
    "ChangedKeys",
    "CheckpointError",
    "Checkpoints",
    "Client",
    "ClientSettings",
    "Cluster",
    "ClusterError",
    "CommandParser",
    "ConfigError",
    "DeadlineError",
    "DeltaPush",
    "DenseInitError",
    "DensePulled",
    "DenseSpec",
    "Distinct",
    "ForbiddenError",
    "Given",
    "Group",
    "GroupError",
    "GroupSettings",
    "Inspected",
    "InternalError",
    "JournalError",
    "Leases",
    "LoadedVersion",
    "LocalDense",
    "LocalTable",
    "Lost",
    "Marks",
    "NotFiniteError",
    "NotYetError",
    "Occurrences",
    "OverloadedError",
    "PendingPull",
    "PendingPush",
    "Place",
    "PserverError",
    "QuotaError",
    "RequestError",
    "RestartedError",
    "Restored",
    "RowRange",
    "Rule",
    "SaveProgress",
    "Saved",
    "Saving",
    "Series",
    "ServeSettings",
    "Settings",
    "ShapeError",
    "SpecMismatchError",
    "Spread",
    "SpreadSeries",
    "StaleError",
    "StandbyError",
    "Step",
    "StorageError",
    "SupersededError",
    "TableFullError",
    "TableSpec",
    "TableStoppedError",
    "TraceSettings",
    "TransientError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownTableError",
    "__version__",
    "add_flags",
    "as_keys",
    "configure_logs",
    "connect",
    "dedupe",
    "embedded",
    "here",
    "load_rule",
    "load_rules",
    "logs_are_json",
    "mix64",
    "nearest",
    "numbered",
    "numbered_file",
    "parse_rule",
    "partition_of",
    "read_paddle",
    "recording",
    "resolve",
    "shard_of",
    "span",
    "start_page_of",
    "tell_crash",
    "tell_failure",
    "traced",
    "within",
]
