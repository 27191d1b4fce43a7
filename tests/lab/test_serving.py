"""`fedhsa lab`: its messages, and that its pages run from top to bottom."""

import importlib.util

import pytest

from fedhsa.cli import main
from fedhsa.lab import serving


def test_a_busy_port_is_told_in_one_sentence(capsys):
    with serving.bound("127.0.0.1", None) as taken:
        port = taken.getsockname()[1]
        assert main(["lab", "--no-browser", "--port", str(port)]) == 1
    told = capsys.readouterr().err
    assert told == f"fedhsa: Port {port} is in use. Choose another with `--port`, or leave `--port` out.\n"


def test_without_a_port_the_next_free_one_is_taken():
    with serving.bound("127.0.0.1", None) as first, serving.bound("127.0.0.1", None) as second:
        assert first.getsockname() != second.getsockname()


def test_a_missing_extra_is_told_in_one_sentence(monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "marimo" else find(name))
    assert main(["lab", "--no-browser"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("fedhsa: marimo, which shows the lab, is not installed. Install it with `pip install")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cube"], "`page` must be one of 'quadratic', 'grid-worlds', got 'cube'."),
        (["--port", "70000"], "`port` must be at most 65535, got 70000."),
        (["--port", "0"], "`port` must be at least 1, got 0."),
    ],
)
def test_arguments_that_cannot_be_used_are_named(arguments, sentence, capsys):
    assert main(["lab", *arguments]) == 2
    assert capsys.readouterr().err == f"fedhsa: {sentence}\n"


@pytest.mark.slow
def test_the_page_runs_as_a_plain_program():
    """So it also opens with `marimo edit`: every cell runs, and the settings are those without a link."""
    pytest.importorskip("marimo")
    from fedhsa.lab.app import app
    from fedhsa.lab.quadratic import Setting

    _, defined = app.run()
    assert defined["setting"] == Setting()
    assert set(defined["seen"]) == {"FedHSA", "LocalSA", "SCAFFLSA", "SynchronisedSA"}
