"""The numbers for Prometheus: as its own parser reads them, in a file and over HTTP."""

import http.client
import socket

import pytest

from fedhsa.deploy.prometheus import CONTENT_TYPE, Exporter, Target, exported

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
]


def read(text: str) -> dict:
    """The samples by name and labels; the parser raises where the text is not in the format."""
    assert text.endswith("\n")
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "run")): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(exporter: Exporter) -> Exporter:
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
    assert found["fedhsa_rejected_messages_total",] == 1
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
