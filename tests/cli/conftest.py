"""For commands whose figure is not looked at: composed as ever, but not rendered, which takes longer than the rest."""

import pathlib

import pytest

from fedhsa import plots
from fedhsa.experiments.run import store

EMPTY = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b'<svg xmlns="http://www.w3.org/2000/svg"/>'}


@pytest.fixture
def unrendered(monkeypatch):
    """Figures are written as files that only begin like one. Fixtures of a module come before it, and do render."""

    def save(figure, path, suffixes=(".png", ".pdf")):
        for suffix in suffixes:
            pathlib.Path(f"{path}.{suffix.removeprefix('.')}").write_bytes(EMPTY[f".{suffix.removeprefix('.')}"])

    monkeypatch.setattr(plots, "save", save)
    monkeypatch.setattr(plots, "rehearse", lambda: None)
    monkeypatch.setattr(store, "save", save)
