"""The notebooks of `examples/notebooks`: marimo files, and the same cells with outputs for Jupyter.

    python tests/notebooks.py                    # run all notebooks and write their .ipynb
    python tests/notebooks.py quickstart         # some of them

The cells are run in the order of the file in one namespace, as Jupyter runs them.
"""

import ast
import base64
import contextlib
import io
import pathlib
import sys
import textwrap
from typing import Any, NamedTuple

import nbformat
from nbformat import v4

FOLDER = pathlib.Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
DPI = 110
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


class Cell(NamedTuple):
    kind: str
    """`code` or `markdown`."""
    source: str


def cells(path: pathlib.Path) -> list[Cell]:
    """The cells of a marimo file as Jupyter has them: texts are Markdown, and marimo itself is not imported."""
    text = path.read_text()
    lines, found = text.splitlines(), []
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body
        if isinstance(body[-1], ast.Return):
            body = body[:-1]
        first, last = body[0].lineno, body[-1].end_lineno
        source = textwrap.dedent("\n".join(lines[first - 1 : last]))
        if source == "import marimo as mo":
            continue
        found.append(Cell("code", source) if (words := _markdown(body)) is None else Cell("markdown", words))
    return found


def _markdown(body: list[ast.stmt]) -> str | None:
    """The text of a cell that shows nothing but `mo.md`."""
    match body:
        case [
            ast.Expr(
                ast.Call(ast.Attribute(ast.Name("mo"), "md"), [ast.Constant(str(text))]),
            )
        ]:
            return textwrap.dedent(text).strip()
    return None


def run(some: list[Cell]) -> list[list[Any]]:
    """The outputs of every cell."""
    namespace: dict[str, Any] = {"__name__": "notebook"}
    found, count = [], 0
    for cell in some:
        if cell.kind == "markdown":
            found.append([])
            continue
        count += 1
        tree, printed, value = ast.parse(cell.source), io.StringIO(), None
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"<cell {count}>", "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"<cell {count}>", "eval"), namespace)
        outputs = [v4.new_output("stream", name="stdout", text=printed.getvalue())] if printed.getvalue() else []
        if value is not None:
            outputs.append(v4.new_output("execute_result", data=_shown(value), execution_count=count))
        found.append(outputs)
    return found


def _shown(value: Any) -> dict[str, str]:
    from matplotlib.figure import Figure

    if isinstance(value, Figure):
        drawn = io.BytesIO()
        value.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
        return {"image/png": base64.b64encode(drawn.getvalue()).decode(), "text/plain": "<Figure>"}
    html = {"text/html": value._repr_html_()} if hasattr(value, "_repr_html_") else {}
    return {**html, "text/plain": repr(value)}


def assemble(some: list[Cell], outputs: list[list[Any]]) -> nbformat.NotebookNode:
    """The notebook for Jupyter, with nothing in it that another machine or another day would change."""
    found, count = [], 0
    for at, (cell, shown) in enumerate(zip(some, outputs, strict=True)):
        if cell.kind == "markdown":
            found.append(v4.new_markdown_cell(cell.source, id=f"cell-{at:02}"))
        else:
            count += 1
            made = v4.new_code_cell(cell.source, id=f"cell-{at:02}", outputs=shown, execution_count=count)
            found.append(made)
    return v4.new_notebook(cells=found, metadata=METADATA)


def main(names: list[str]) -> None:
    """Runs notebooks and writes them for Jupyter."""
    for name in names or NAMES:
        some = cells(FOLDER / f"{name}.py")
        notebook = assemble(some, run(some))
        nbformat.validate(notebook)
        nbformat.write(notebook, FOLDER / f"{name}.ipynb")
        print(f"examples/notebooks/{name}.ipynb: written", flush=True)


if __name__ == "__main__":
    import conftest  # noqa: F401  # the same strict arithmetic as in the tests

    main(sys.argv[1:])
