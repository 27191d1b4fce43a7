"""The numbers for Prometheus: as its own parser reads them, in a file and over HTTP."""

import http.client
import json
import re
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from fedhsa.deploy import Node, Plan, prometheus
from fedhsa.deploy.init import TEMPLATES
from fedhsa.deploy.prometheus import CONTENT_TYPE, HELP, AbstractExporter, Exporter, NodeExporter, Target, exported
from fedhsa.deploy.server import hello

parser = pytest.importorskip("prometheus_client.parser", reason="the parser of Prometheus' own client")
TIME = {"time": "2026-01-02T03:04:05.000+00:00"}
EVENTS = [
    {"event": "started", "run": 'a"\\1', "round": 0, "rounds": 5, "agents": 2, "transport": "memory", **TIME},
    {
        **{"event": "round", "round": 1, "rounds": 5, "error": None, "operator_norm": "infinity", "agents": 1},
        **{"seconds": 0.5, "bytes_down": 100, "bytes_up": 30, "attempts": 2, "movement": 0.25, "absent": [1], **TIME},
        "measured": {"round": 0, "weights": [1, 3], "metrics": {"rmse": {"mean": 2.5, "agents": [2.5, None]}}},
    },
    {"event": "rejected", "code": "stale", "why": "late", **TIME},
    {"event": "rejected", "code": 'x"} 1\nfedhsa_round 9', "why": "hostile", **TIME},
]


def read(text: str) -> dict:
    """The samples by name and labels; the parser raises where the text is not in the format."""
    assert text.endswith("\n")
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "run")): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


T = TypeVar("T", bound=Callable[[dict[str, Any]], None])


def told(exporter: T) -> T:
    for event in EVENTS:
        exporter(event)
    return exporter


def test_prometheus_reads_what_a_run_writes():
    found = read(told(Exporter()).text())
    assert found["fedhsa_round",] == 1
    assert found["fedhsa_bytes_down_total",] == 100
    assert found["fedhsa_operator_norm",] == float("inf")
    assert ("fedhsa_error",) not in found  # not known is not zero
    assert found["fedhsa_metric", "0", "rmse"] == 2.5
    assert ("fedhsa_metric", "1", "rmse") not in found
    assert (found["fedhsa_site_up", "0"], found["fedhsa_site_up", "1"]) == (1, 0)
    assert found["fedhsa_site_last_seen_timestamp_seconds", "0"] == 1767323045
    assert found["fedhsa_rejected_messages_total", "stale"] == 1
    assert found["fedhsa_rejected_messages_total", "other"] == 1  # whatever a stranger calls it
    assert (found["fedhsa_site_absences_total", "0"], found["fedhsa_site_absences_total", "1"]) == (0, 1)
    assert (found["fedhsa_agents_absent",], found["fedhsa_round_seconds_total",]) == (1, 0.5)
    labels = next(iter(parser.text_string_to_metric_families(told(Exporter()).text()))).samples[0].labels
    assert labels == {"run": 'a"\\1'}


def test_the_numbers_are_in_a_file_or_served_while_the_run_goes_on(tmp_path):
    file = tmp_path / "deep" / "run.prom"
    with exported(Target.parse(str(file))) as exporter:
        told(exporter)({"event": "finished", "round": 1, **TIME})
    assert read(file.read_text())["fedhsa_running",] == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with exported(Target.parse(f"127.0.0.1:{port}")) as exporter:
        told(exporter)
        for path, status in (("/metrics", 200), ("/secret", 404)):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            assert answer.status == status
            if status == 200:
                assert answer.getheader("Content-Type") == CONTENT_TYPE
                assert read(text)["fedhsa_running",] == 1
        with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1:{port}"), exported(Target(port=port)):
            pass


def test_strangers_who_say_nothing_do_not_keep_prometheus_from_the_numbers(monkeypatch):
    monkeypatch.setattr(prometheus, "CONNECTIONS", 2)
    monkeypatch.setattr(prometheus, "PATIENCE", 0.2)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with exported(Target(port=port)) as exporter:
        told(exporter)
        silent = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(4)]
        assert [connection.recv(1) for connection in silent] == 4 * [b""]  # turned away, or closed after a moment
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()
        for connection in silent:
            connection.close()


def test_a_node_tells_what_it_answered_and_what_it_refused(tmp_path):
    plan, exporter = Plan(num_agents=2, dim=2), NodeExporter(1)
    with Node(tmp_path, number=1, watch=exporter) as node:
        greeting = hello(plan.task, "run1", plan)
        said = node.answer(greeting)
        refused = node.answer(b"nothing that we know")
    found = read(exporter.text())
    assert found["fedhsa_node_answers_total", "1", "present"] == 1
    assert found["fedhsa_node_refusals_total", "1", "foreign"] == 1
    assert found["fedhsa_node_bytes_down_total", "1"] == len(greeting) + 20
    assert found["fedhsa_node_bytes_up_total", "1"] == len(said) + len(refused)
    assert found["fedhsa_node_answer_seconds_total", "1"] > 0
    assert not [name for name, *_ in found if name in ("fedhsa_node_metric", "fedhsa_node_epsilon_spent")]
    exporter({"event": "sent", "kind": "reply", "run": "run1", "round": 7, "bytes": 9, "epsilon": 0.5, **TIME})
    exporter({"event": "answered", "seconds": 1, "bytes_down": 1, "bytes_up": 1, "measured": {"rmse": 0.25}})
    found = read(exporter.text())
    assert found["fedhsa_node_round", "1"] == 7
    assert found["fedhsa_node_epsilon_spent", "1"] == 0.5
    assert found["fedhsa_node_metric", "1", "rmse"] == 0.25


def test_the_dashboard_asks_for_metrics_that_server_and_nodes_have():
    board = json.loads((TEMPLATES / "monitoring" / "grafana.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"\bfedhsa_[a-z_]+", query)}
    known = {f"fedhsa_{name}" for name in HELP}
    assert asked == known, "a panel asks for what is not there, or something is shown nowhere"
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
    variable = next(v for v in board["templating"]["list"] if v["name"] == "run")
    assert "fedhsa_running" in variable["query"]["query"]


def test_every_metric_is_written_by_a_server_or_a_node():
    def names(exporter: AbstractExporter) -> set[str]:
        return {family.name for family in parser.text_string_to_metric_families(exporter.text())}

    server, node = told(Exporter()), NodeExporter(0)
    server({**EVENTS[1], "error": 0.5, **TIME})
    node({"event": "sent", "kind": "reply", "run": "run1", "round": 7, "bytes": 9, "epsilon": 0.5, **TIME})
    node({"event": "answered", "seconds": 1, "bytes_down": 1, "bytes_up": 1, "measured": {"rmse": 0.25}})
    assert names(server) | names(node) == {f"fedhsa_{name.removesuffix('_total')}" for name in HELP}
