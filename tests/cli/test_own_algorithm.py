"""An algorithm and an environment from two files: what the page on them shows is what the files say, and it runs."""

import json
import pathlib

import numpy as np
import pytest

import fedhsa as fh
import pages
from fedhsa.cli import main

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "own_algorithm"


def test_the_page_shows_the_files_that_its_commands_name():
    shown = [block.text for block in pages.read((ROOT / "docs" / "how-to" / "own-algorithm.md").read_text())]
    for file, first in (("thermostats.py", "WISH"), ("damped.py", "class Server")):
        text = (FOLDER / file).read_text()
        assert any(text[text.index(first) :].strip() in block for block in shown), file


@pytest.mark.slow
def test_a_method_and_an_environment_from_files_are_judged_by_returns(tmp_path, capsys, unrendered):
    flags = (
        "--option batch=2 evaluation_episodes=1 --num-agents 1 --local-steps 1 --samples 2 --seeds 2 --step-size 0.1"
    )
    files = ["--problem", f"{FOLDER}/thermostats.py:build", "--algorithm", f"{FOLDER}/damped.py:DampedHSA(trust=0.25)"]
    assert main(["compare", *files, *flags.split(), "--out", str(tmp_path)]) == 0
    assert "mean return" in capsys.readouterr().out
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert [place["name"] for place in manifest["ranking"]["places"]] == ["DampedHSA(trust=0.25)"]
    with np.load(tmp_path / "compare.npz", allow_pickle=False) as kept:
        returns = kept["DampedHSA(trust=0.25)/mean_return"]
        assert returns.shape == (2, 3)
        assert (returns < 48).all()
    opened = fh.load(tmp_path)
    assert opened.quantity == "mean_return"
    np.testing.assert_array_equal(opened.entries["DampedHSA(trust=0.25)"].values, returns)
