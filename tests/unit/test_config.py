"""What ``config`` promises: settings that are checked, frozen and never dropped."""

from typing import Any

import pytest
from pydantic import ValidationError

from pserver.config import ClientSettings, ServeSettings
from pserver.errors import ConfigError
from pserver.settings import Settings

KINDS: tuple[type[Settings], ...] = (ServeSettings, ClientSettings)


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            ServeSettings,
            "shrads",
            r"unknown setting 'shrads'; did you mean 'shards'\? Valid: acknowledge, bind,",
        ),
        (ClientSettings, "timeout", r"unknown setting 'timeout'; did you mean 'timeout_s'\?"),
        (ClientSettings, "zzz", r"unknown setting 'zzz'; valid: .*retry, .*, window"),
    ],
)
def test_the_nearest_name_is_shown_when_a_setting_is_unknown(
    kind: type[Settings], name: str, message: str
) -> None:
    """A name that is not known is an error, never ignored."""
    with pytest.raises(ConfigError, match=message):
        kind.make({name: 1}, origins={})


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (ServeSettings, {"shard": -1}, r"^--shard: .*greater than or equal to 0, got -1$"),
        (ServeSettings, {"shard": "two"}, r"^--shard: .*valid integer.*, got 'two'$"),
        (ServeSettings, {"shards": 1025}, r"^shards: .*less than or equal to 1024, got 1025$"),
        (ServeSettings, {"drain_s": 3601}, r"less than or equal to 3600, got 3601$"),
        (ServeSettings, {"queue_max": 0}, r"greater than or equal to 1, got 0$"),
        (
            ServeSettings,
            {"log_level": "loud"},
            r"unknown value 'loud'; valid: debug, error, info, warning$",
        ),
        (ClientSettings, {"timeout_s": 0}, r"^timeout_s: .*greater than 0, got 0$"),
        (ClientSettings, {"timeout_s": float("nan")}, r"^timeout_s: .*, got nan$"),
        (ClientSettings, {"window": 2.5}, r"^window: .*integer.*, got 2.5$"),
        (
            ClientSettings,
            {"window": 0, "send_queue_size": 0},
            r"^send_queue_size: .*, got 0; window: .*, got 0$",
        ),
    ],
)
def test_a_value_is_refused_when_it_is_out_of_range(
    kind: type[Settings], values: dict[str, Any], message: str
) -> None:
    """The error says where each value came from, what must hold and what came."""
    with pytest.raises(ConfigError, match=message):
        kind.make(values, origins={"shard": "--shard"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_read_when_it_comes_from_the_environment(kind: type[Settings]) -> None:
    """Every default, written as text, is read as the same value."""
    defaults = kind.make({}, origins={})
    texts = {name: str(value) for name, value in defaults if value is not None}

    assert kind.make(texts, origins={}) == defaults


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_described_when_help_is_asked_for(kind: type[Settings]) -> None:
    """Each setting has a description and a default."""
    for name, field in kind.model_fields.items():
        assert field.description, name
        assert not field.is_required(), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_setting_counts_when_it_is_given(kind: type[Settings]) -> None:
    """What is given is what is read, for every setting."""
    values: dict[str, Any] = {
        "shard": 3,
        "shards": 4,
        "bind": "h:1",
        "metrics_bind": "h:2",
        "drain_s": 1.5,
        "tls_cert": "c.pem",
        "tls_key": "k.pem",
        "tls_ca": "a.pem",
        "token_file": "tokens.toml",
        "insecure_bind": True,
        "table_rows_max": 8,
        "table_bytes_max": 9,
        "new_rows_per_minute": 10,
        "new_rows_per_call": 11,
        "on_full": "evict",
        "queue_max": 7,
        "rule": "own.py:Mine",
        "trace": "out.json",
        "otel_endpoint": "h:4317",
        "storage_dir": "/fast",
        "checkpoint_dir": "/safe",
        "read_only": False,
        "follow": False,
        "unknown_reads": "table",
        "restore": "latest",
        "journal": "/safe/journal",
        "fsync": "always",
        "fsync_interval_ms": 20.0,
        "standby_of": "h:3",
        "standby_token_file": "admin.token",
        "acknowledge": "standby",
        "log_level": "debug",
        "log_format": "json",
        "timeout_s": 1.0,
        "try_timeout_s": 0.5,
        "retry": 4,
        "promote_after_s": 30.0,
        "on_restart": "go_on",
        "send_queue_size": 5,
        "send_queue_bytes": 99,
        "window": 2,
    }
    own = {name: values[name] for name in kind.model_fields}

    assert dict(kind.make(own, origins={})) == own


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"restore": "latest"}, "restore needs checkpoint_dir or journal"),
        ({"unknown_reads": "zeros"}, "unknown_reads need read_only"),
        ({"restore": "3", "journal": "j"}, "restore of a version needs checkpoint_dir"),
        ({"standby_of": "h:1"}, "standby_of and acknowledge need journal"),
        ({"acknowledge": "standby"}, "standby_of and acknowledge need journal"),
        ({"on_full": "evict"}, "on_full evict needs table_rows_max or table_bytes_max"),
        ({"fsync": "always"}, "fsync and fsync_interval_ms need journal"),
        ({"fsync_interval_ms": 5.0}, "fsync and fsync_interval_ms need journal"),
    ],
)
def test_settings_without_effect_are_refused(values: dict[str, Any], message: str) -> None:
    """What would do nothing is refused at start, with what it needs."""
    with pytest.raises(ConfigError, match=message):
        ServeSettings.make(values, origins={})

    assert ServeSettings.make({"restore": "none"}, origins={}).restore == "none"
    assert ServeSettings.make({"restore": "latest", "journal": "j"}, origins={}).fsync == "interval"


def test_settings_cannot_be_changed_when_they_were_made() -> None:
    """They are frozen."""
    settings = ClientSettings()

    with pytest.raises(ValidationError, match="frozen"):
        settings.window = 1
