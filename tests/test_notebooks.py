import json
import pathlib
import subprocess
import sys
import tempfile

import pytest

import pages

nbformat = pytest.importorskip("nbformat", reason="Notebooks for Jupyter need the extra `test`.")

import notebooks  # noqa: E402  # it imports nbformat

LOCAL = (str(pages.ROOT), str(pathlib.Path.home()), tempfile.gettempdir(), "localhost", "127.0.0.1")


def exported(name: str):
    return nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)


def printed(cell) -> str:
    return "".join(output.text for output in cell.get("outputs", ()) if output.output_type == "stream")


def test_there_are_three_notebooks():
    assert notebooks.NAMES == ["grid_worlds", "own_problem", "quickstart"]


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_notebook_for_jupyter_has_the_cells_of_the_marimo_file(name):
    cells = notebooks.cells(notebooks.FOLDER / f"{name}.py")
    assert [(cell.cell_type, cell.source) for cell in exported(name).cells] == [tuple(cell) for cell in cells]


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_notebook_for_jupyter_is_valid_has_outputs_and_nothing_about_a_machine(name):
    notebook = exported(name)
    nbformat.validate(notebook)
    assert notebook.metadata == notebooks.METADATA
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds == {"stream", "execute_result"}
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell.outputs) >= 2
    assert all(not cell.metadata for cell in notebook.cells)
    outputs = [output.get("data", {}) for cell in code for output in cell.outputs]
    texts = json.dumps([cell.source for cell in notebook.cells] + [dict(data, **{"image/png": ""}) for data in outputs])
    assert [word for word in LOCAL if word in texts] == []


def test_a_text_cell_becomes_markdown_and_marimo_itself_is_left_out(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(
        "import marimo\n\napp = marimo.App()\n\n\n"
        "@app.cell\ndef _():\n    import marimo as mo\n\n    return (mo,)\n\n\n"
        '@app.cell\ndef _(mo):\n    mo.md(r"""\n    # Title\n\n    A sentence.\n    """)\n    return\n\n\n'
        "@app.cell\ndef _():\n    x = 1\n    print(x + 1)\n    x\n    return (x,)\n"
    )
    cells = notebooks.cells(path)
    assert cells == [("markdown", "# Title\n\nA sentence."), ("code", "x = 1\nprint(x + 1)\nx")]
    shown = notebooks.run(cells)[1]
    assert (shown[0].text, shown[1].data) == ("2\n", {"text/plain": "1"})


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_the_outputs_are_those_of_the_code(name):
    cells, notebook = notebooks.cells(notebooks.FOLDER / f"{name}.py"), exported(name)
    again = notebooks.assemble(cells, notebooks.run(cells))
    for old, new in zip(notebook.cells, again.cells, strict=True):
        assert pages.agree(printed(old), printed(new)), f"{old.source}\n{printed(old)}\n{printed(new)}"
        kinds = ([sorted(output.get("data", ())) for output in cell.get("outputs", ())] for cell in (old, new))
        assert next(kinds) == next(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_marimo_finds_no_fault_with_the_file(name):
    pytest.importorskip("marimo")
    path = pathlib.Path(notebooks.FOLDER / f"{name}.py")
    checked = subprocess.run(
        [sys.executable, "-m", "marimo", "check", "--strict", path], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
