# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The lab's first page: FedHSA and other methods on the paper's quadratic problem, with sliders."""

import marimo

app = marimo.App(width="full", app_title="fedhsa lab", css_file="look.css", html_head_file="head.html")


@app.cell
def _():
    import marimo as mo

    return (mo,)


@app.cell
def _(mo):
    mo.md("# The lab")
    return


if __name__ == "__main__":
    app.run()
