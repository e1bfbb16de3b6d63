"""Alerts and the board ask for what the product shows, and the alerts find what they are for (J4)."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, PRODUCT_METRIC, load, metric_labels, metric_names

RULES = [rule for group in load("prometheus/alerts.yaml")["groups"] for rule in group["rules"]]
ALERTS = [rule["alert"] for rule in RULES]
TESTS = load("prometheus/alerts_test.yaml")["tests"]


def board_expressions() -> list[str]:
    """Return what the board's panels ask for."""
    board = json.loads((DEPLOY / "grafana" / "board.json").read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def unknown(expressions: list[str]) -> set[str]:
    """Return the metrics of ours in expressions that no page has."""
    return {name for text in expressions for name in PRODUCT_METRIC.findall(text)} - metric_names()


def test_every_metric_of_alerts_and_board_exists() -> None:
    """No alert, no test of one and no panel asks for a name that the product's pages lack."""
    series = [entry["series"] for test in TESTS for entry in test["input_series"]]

    assert unknown([rule["expr"] for rule in RULES]) == set()
    assert unknown(series) == set()
    assert unknown(board_expressions()) == set()
    assert unknown(["rate(pserver_pulls_total[1m])"]) == {"pserver_pulls_total"}  # it can fail


def test_labels_of_alerts_and_board_are_those_of_the_metrics() -> None:
    """What stands in braces behind a metric is a label that it has, or one that Prometheus adds."""
    labels = metric_labels()
    asked = re.compile(r"\b((?:pserver|trainer)_\w+)\{([^}]*)\}")

    for text in [*(rule["expr"] for rule in RULES), *board_expressions()]:
        for name, inside in asked.findall(text):
            names = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", inside))
            assert names <= labels[name] | {"job", "instance"}, text


def test_the_operator_gets_the_same_alerts() -> None:
    """The PrometheusRule has the groups that promtool tests, word for word."""
    text = (DEPLOY / "kubernetes" / "base" / "monitoring.yaml").read_text(encoding="utf-8")
    (rule,) = [item for item in yaml.safe_load_all(text) if item["kind"] == "PrometheusRule"]

    assert rule["spec"] == load("prometheus/alerts.yaml")


def test_every_alert_has_a_first_step_and_a_test() -> None:
    """The runbook has a heading for each alert and none besides, and each is seen to fire."""
    text = (DEPLOY / "RUNBOOK.md").read_text(encoding="utf-8")
    fired = {
        case["alertname"]
        for test in TESTS
        for case in test.get("alert_rule_test", [])
        if case.get("exp_alerts")
    }

    assert re.findall(r"^### (\w+)$", text, re.M) == ALERTS
    assert fired == set(ALERTS)


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus/prometheus.yaml"),
        ("test", "rules", "prometheus/alerts_test.yaml"),
    ],
)
def test_promtool_accepts(words: tuple[str, ...]) -> None:
    """Prometheus' own tool accepts the files, and the alerts find dead, slow, full, stale and NaN."""
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool, which is part of Prometheus")

    done = subprocess.run(
        ["promtool", *words], cwd=DEPLOY, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
