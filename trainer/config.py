"""The settings of ``trainer run``, each with its one default.

Rooms before and after: ``cli`` fills them from flags, environment (TRAINER_...), other systems' names
(``aliases``) and TOML ([run]); ``job`` builds a run from them. A run's settings are those of its data, of
how trainers work together (``strategy``), and of the model and process.
"""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from typing_extensions import override

from pserver import AccessSettings, ClientSettings
from trainer.settings.columns import COLUMNS, ColumnSettings, refuse_idle_columns
from trainer.settings.computing import ComputingSettings, refuse_idle_computing
from trainer.settings.every import every_of
from trainer.settings.model_name import checked_model
from trainer.settings.saves import refuse_saves
from trainer.settings.shown import ShownSettings
from trainer.settings.split import SplitSettings, is_split, refuse_idle
from trainer.strategy import Strategy

TRAINERS_MAX = 1024
"""Trainers of one job at most."""

_IDLE_WITH = {
    "shards": "ps",
    "storage_dir": "ps",
    "checkpoint_dir": "ps",
    "rows": "data",
    "scale": "data",
    "alpha": "data",
}
"""Settings that nothing reads when the other one is given."""

_IDLE_WITHOUT_DATA = ("format", "slots", "bad_lines", *COLUMNS)
"""Settings that nothing reads unless a file is."""


def _checked_every(given: object) -> object:
    """Return a text such as 1000 or 60s; a number of steps is one too."""
    if given is None or isinstance(given, bool):
        return given
    text = str(given)
    every_of(text)
    return text


class DataSettings(ColumnSettings):
    """The rows of a run."""

    data: Annotated[
        str | None,
        Field(description="training FILE,PATTERN,...; none: generated Criteo-shaped rows"),
    ] = None
    format: Annotated[
        Literal["criteo", "avazu", "libsvm", "libfm", "parquet"],
        Field(description="of --data and --eval-data; libfm is libsvm by another name"),
    ] = "criteo"
    slots: Annotated[
        int | None,
        Field(
            ge=1,
            le=65536,
            description="features of a libsvm row at most; none: those of the longest row",
        ),
    ] = None
    bad_lines: Annotated[
        Literal["skip", "fail"], Field(description="what a line that cannot be read does")
    ] = "fail"
    data_mode: Annotated[
        Literal["static", "dynamic"],
        Field(description="a share for each trainer, or ranges leased from shard 0 as they go"),
    ] = "static"
    range_rows: Annotated[
        int | None,
        Field(
            ge=1, le=1 << 40, description="rows of a leased range; none: a tenth of a share at most"
        ),
    ] = None
    eval_data: Annotated[
        str | None, Field(description="held-out FILE,PATTERN,...; scored after training")
    ] = None
    eval_last: Annotated[
        int | None,
        Field(ge=1, description="hold out the last N rows of --data, or N generated rows"),
    ] = None
    rows: Annotated[int, Field(ge=1, le=10**12, description="generated training rows an epoch")] = (
        3_000_000
    )
    scale: Annotated[
        float,
        Field(gt=0.0, le=1000.0, description="generated ids a slot, against Criteo's"),
    ] = 1.0
    alpha: Annotated[
        float, Field(gt=0.0, le=10.0, description="Zipf exponent of generated ids")
    ] = 1.05

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse settings that contradict each other or would have no effect."""
        if self.eval_data is not None and self.eval_last is not None:
            raise ValueError("eval_data and eval_last both name the held-out rows; give one")
        if self.eval_data is not None and self.data is None:
            raise ValueError("eval_data needs data: generated rows have their own held-out rows")
        for name in _IDLE_WITHOUT_DATA:
            if name in self.model_fields_set and self.data is None:
                raise ValueError(f"{name} has no effect without data: generated rows need none")
        if self.range_rows is not None and self.data_mode == "static":
            raise ValueError("range_rows has no effect unless data_mode is dynamic")
        refuse_idle_columns(self.model_fields_set, self.format)
        if "slots" in self.model_fields_set and self.format not in ("libsvm", "libfm"):
            raise ValueError(
                f"slots has no effect with format {self.format}, which has its own; leave it out"
            )
        return self


class RunSettings(
    Strategy, DataSettings, SplitSettings, ComputingSettings, ShownSettings, AccessSettings
):
    """One training run."""

    ps: Annotated[
        str | None,
        Field(description="HOST:PORT,... of the servers, shard 0 first; none: embedded shards"),
    ] = None
    shards: Annotated[
        int, Field(ge=1, le=64, description="embedded shards, when --ps is not given")
    ] = 2
    trainers: Annotated[
        int, Field(ge=1, le=TRAINERS_MAX, description="trainers of the job, all with this setting")
    ] = 1
    trainer_id: Annotated[
        int | None,
        Field(ge=0, lt=TRAINERS_MAX, description="number of this one, from 0; none: all of them"),
    ] = None
    master: Annotated[
        str | None,
        Field(
            description="HOST:PORT at which trainers with dense allreduce meet, of trainer 0's host; "
            "chosen when all are started here"
        ),
    ] = None
    master_store: Annotated[
        Literal["trainer0", "launcher"],
        Field(description="who listens there: trainer 0, or what started the trainers (torchrun)"),
    ] = "trainer0"
    log_dir: Annotated[
        str,
        Field(description="folder for the logs of trainers that are all started here"),
    ] = "trainer-logs"
    base_samples_per_s: Annotated[
        float | None,
        Field(gt=0.0, allow_inf_nan=False, description="of one trainer, to tell the speed-up"),
    ] = None
    model: Annotated[
        str,
        AfterValidator(checked_model),
        Field(description="lr, fm, wide_deep, deepfm, or your own: FILE.py:CLASS or MODULE:CLASS"),
    ] = "deepfm"
    dim: Annotated[
        int | None,
        Field(
            ge=1,
            le=4096,
            description="floats a row, the first of them the linear weight; none: the model's",
        ),
    ] = None
    optimizer: Annotated[str, Field(description="rule of the table, see `pserver optimizers`")] = (
        "adagrad:lr=0.02"
    )
    rule: Annotated[
        str | None,
        Field(description="optimizers of your own, as FILE.py:NAME,...; the servers need them too"),
    ] = None
    initializer: Annotated[str, Field(description="first weights of a row")] = (
        "uniform:low=-0.01,high=0.01"
    )
    accessor: Annotated[
        str, Field(description="what is kept of a key beside weights: plain, or ctr:...")
    ] = "plain"
    embedx_optimizer: Annotated[
        str, Field(description="of the second part of rows of ctr; empty: as optimizer")
    ] = ""
    admission: Annotated[
        str,
        Field(
            description="which new keys get a row: always, count:n=N, probability:p=P, "
            "show_click:score=S"
        ),
    ] = "always"
    row_dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], Field(description="what weights are kept in")
    ] = "float32"
    storage: Annotated[
        Literal["memory", "file"],
        Field(description="where shards keep rows; file needs their --storage-dir"),
    ] = "memory"
    on_nan: Annotated[
        Literal["reject", "zero", "fail"],
        Field(description="a push with NaN: refuse it, take NaN as 0, or stop the table"),
    ] = "reject"
    ttl_days: Annotated[
        int,
        Field(
            ge=0,
            le=36_500,
            description="rows go with `pserver shrink` when not written for more days; 0: never",
        ),
    ] = 0
    evict: Annotated[
        str,
        Field(description="what falls out of a shard over its limit, such as lru:rows=1e7"),
    ] = "none"
    storage_dir: Annotated[
        str | None, Field(description="folder of embedded shards for storage file")
    ] = None
    checkpoint_every: Annotated[
        str | None,
        BeforeValidator(_checked_every),
        Field(
            description="steps (1000) or seconds (60s) between two checkpoints; none: none is saved"
        ),
    ] = None
    resume: Annotated[
        bool, Field(description="go on where the version that the servers restored ends")
    ] = False
    checkpoint_dir: Annotated[
        str | None, Field(description="folder of the checkpoints of embedded shards")
    ] = None
    epochs: Annotated[int, Field(ge=1, le=10**6, description="passes over the data")] = 1
    steps: Annotated[
        int | None, Field(ge=1, description="stop after this many steps; none: all the data")
    ] = None
    batch_size: Annotated[int, Field(ge=1, le=1 << 20, description="samples a step")] = 4096
    seed: Annotated[
        int, Field(ge=0, lt=1 << 63, description="of first weights and generated rows")
    ] = 0
    threads: Annotated[
        int | None, Field(ge=1, le=1024, description="of torch; none: torch's own choice")
    ] = None
    window: Annotated[
        int,
        Field(
            ge=1,
            le=1024,
            description="requests to one shard on the wire at once; 1 makes a run reproducible",
        ),
    ] = ClientSettings().window

    @model_validator(mode="after")
    def _check_split(self) -> Self:
        """Refuse what this trainer's part of the model does not read."""
        refuse_idle(self)
        refuse_idle_computing(self)
        return self

    @model_validator(mode="after")
    def _check_access(self) -> Self:
        """Refuse certificates and a token that nobody would be shown."""
        for name in AccessSettings.model_fields:
            is_shown = self.metrics_bind is not None or self.role != "all"  # to others than servers
            serves = name != "token_file" and is_shown
            if getattr(self, name) is not None and self.ps is None and not serves:
                raise ValueError(f"{name} has no effect without ps: embedded shards have no port")
        return self

    @model_validator(mode="after")
    def _check_run(self) -> Self:
        """Refuse settings that contradict each other or would have no effect."""
        for name, other in _IDLE_WITH.items():
            if name in self.model_fields_set and getattr(self, other) is not None:
                raise ValueError(f"{name} has no effect when {other} is given; leave one out")
        if self.storage_dir is not None and self.storage == "memory":
            raise ValueError("storage_dir has no effect unless storage is file")
        refuse_saves(self)
        self._check_restarts()
        if self.trainer_id is not None and self.trainer_id >= self.trainers:
            raise ValueError(
                f"trainer_id must be below trainers, which is {self.trainers}, got "
                f"{self.trainer_id}"
            )
        if self.data_mode == "dynamic" and self.deterministic:
            raise ValueError(
                "deterministic and data_mode dynamic deny each other: who gets which rows depends on "
                "the clock; use data_mode static"
            )
        if self.data_mode == "dynamic" and self.max_staleness is not None and self.mode != "sync":
            raise ValueError(
                "max_staleness and data_mode dynamic deny each other: a trainer that waits for the last "
                "ranges would hold back those that train on them; use data_mode static"
            )
        if "log_dir" in self.model_fields_set and not self.starts_all:
            raise ValueError(
                "log_dir has no effect unless several trainers are all started here, with trainers "
                "above 1 and no trainer_id"
            )
        needs_servers = self.trainers > 1 and self.role != "dense"
        if self.trainer_id is not None and needs_servers and self.ps is None:
            raise ValueError(
                "trainer_id is of one trainer of several, which need servers in common: give ps"
            )
        if self.trainers > 1 and "dense" in self.model_fields_set and self.dense == "local":
            raise ValueError(
                "dense local would give each of several trainers a dense part of its own; "
                "use dense pserver or allreduce, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        """Refuse numbers of trainers that cannot average, and a trainer that knows no meeting place."""
        if self.dense != "allreduce":
            return self
        nodes_of = self.inter_nranks
        if nodes_of is not None and self.trainers % nodes_of:
            raise ValueError(
                f"inter_nranks must divide trainers, which is {self.trainers}, got {nodes_of}"
            )
        if self.trainers > 1 and not self.starts_all and self.master is None:
            raise ValueError(
                "dense allreduce with trainer_id needs master, the HOST:PORT at which all trainers meet"
            )
        return self

    def _check_restarts(self) -> None:
        """Refuse to go on where no server can come back, or where it takes more than rows with it."""
        if self.on_restart == "fail":
            return
        if self.ps is None:
            raise ValueError(
                "on_restart has no effect without ps: servers of this run are not started again"
            )
        if self.data_mode == "dynamic":
            raise ValueError(
                "on_restart go_on needs data_mode static: who has which leased range is on shard 0 and "
                "would be lost with it; servers with --journal lose nothing"
            )

    @property
    def starts_all(self) -> bool:
        """Return whether this run starts all trainers of the job, rather than being one."""
        return self.trainers > 1 and self.trainer_id is None

    @property
    def device_here(self) -> str:
        """Return the device of what this trainer computes, as ``device`` has it."""
        return "cpu" if self.role == "embed" else self.device

    def strategy(self) -> Strategy:
        """Return how trainers work together; the dense part of several is on the servers if not averaged."""
        given = {
            n: getattr(self, n)
            for n in Strategy.model_fields
            if n in self.model_fields_set and not self.reads_anyway(n)
        }
        if self.trainers > 1 and self.dense != "allreduce" and not is_split(self):
            given["dense"] = "pserver"
        return Strategy(**given)

    @override
    def reads_anyway(self, name: str) -> bool:
        """Return whether a knob of ``dense`` ``allreduce`` is read with another ``dense`` too."""
        return name == "check_every" and self.stages > 1

    def client_settings(self) -> ClientSettings:
        """Return the part that the client is made with."""
        return ClientSettings(
            timeout_s=self.give_up_after,
            promote_after_s=self.promote_after,
            retry=self.retry,
            window=self.window,
            send_queue_size=self.send_queue_size,
            send_queue_bytes=self.send_queue_bytes,
            on_restart=self.on_restart,
            **{name: getattr(self, name) for name in AccessSettings.model_fields},
        )
