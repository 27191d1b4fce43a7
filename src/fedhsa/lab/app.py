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
    import numpy as np

    from fedhsa.lab import figures
    from fedhsa.lab import quadratic as lab

    return figures, lab, mo, np


@app.cell
def _(mo):
    mo.Html("""
    <header class="fh-header">
      <p class="fh-nav"><b>fedhsa lab</b><span aria-current="page">Quadratic problem</span>
        <a href="/grid-worlds/">Grid worlds</a></p>
      <h1>Local steps drift. FedHSA steers them back.</h1>
      <p>Each of <i>M</i> agents sees its own Markov chain and has its own root. They look for the root of the
      <i>average</i> operator, and meet the server only once in <i>H</i> steps. Move the sliders: all curves are exact
      laws, computed without a simulation.</p>
    </header>
    """)
    return


@app.cell
def _(lab, mo, np):
    restored = lab.from_link(mo.query_params())

    def slider(name, label, steps):
        """Return a slider at the value that is nearest to the restored setting."""
        value = getattr(restored, name)
        nearest = min(steps, key=lambda step: abs(step - value))
        return mo.ui.slider(steps=steps, value=nearest, label=label, show_value=True, full_width=True)

    sliders = {
        "num_agents": ("agents M", [1, 2, 3, 5, 8, 10, 15, 20, 30, 40, 50]),
        "local_steps": ("local steps H", [1, 2, 3, 5, 8, 10, 15, 20, 30, 50]),
        "step_size": ("step size η", [float(f"{10**k:.2g}") for k in np.linspace(-3, 0, 31)]),
        "b_level": ("spread of the roots", [0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0]),
        "heterogeneity": ("heterogeneity", [k / 10 for k in range(11)]),
        "noise_std": ("noise", [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0]),
        "noise_radius": ("stickiness of the chains", [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99]),
        "server_step": ("server step size", [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0]),
        "rounds": ("rounds", [20, 40, 60, 100, 200, 400]),
    }
    controls = mo.ui.dictionary({name: slider(name, *described) for name, described in sliders.items()})
    labelled = zip(("third method", "fourth method"), restored.others, strict=True)
    others = mo.ui.array(
        [mo.ui.dropdown(lab.OTHERS, value=name, label=label, allow_select_none=False) for label, name in labelled]
    )
    mo.Html(f"""
    <section class="fh-controls" aria-label="Settings">
      <h2>Settings</h2>
      <div class="fh-sliders">{"".join(f"{control}" for control in (*controls.values(), *others))}</div>
    </section>
    """)
    return controls, others, restored


@app.cell
def _(controls, lab, others, restored):
    setting = lab.Setting(**controls.value, others=tuple(others.value), key=restored.key)
    seen = lab.see(setting)
    return seen, setting


@app.cell
def _(figures, mo):
    axis = mo.ui.dropdown(list(figures.AXES), value="rounds", label="against", allow_select_none=False)
    seeds = mo.ui.dropdown(["8", "32", "128"], value="32", label="seeds", allow_select_none=False)
    simulate = mo.ui.run_button(label="Simulate", tooltip="Run these methods and draw the runs over the exact curves")
    return axis, seeds, simulate


@app.cell
def _(lab, mo, seeds, setting, simulate):
    simulated = {}
    if simulate.value:
        for _name in mo.status.progress_bar(setting.methods, title="Simulating", remove_on_exit=True):
            simulated[_name] = lab.simulated(setting, _name, int(seeds.value))
    return (simulated,)


@app.cell
def _(axis, figures, lab, mo, seeds, seen, setting, simulate, simulated):
    drawn = figures.curves(
        lab.see_along(setting, axis.value), axis=axis.value, simulated=simulated, seeds=int(seeds.value)
    )
    mo.Html(f"""
    <section class="fh-card" id="curves">
      <h2>Error curves <span class="fh-badge">exact</span></h2>
      <div class="fh-tools">{axis}{seeds}{simulate}</div>
      {drawn}
      <div hidden id="fh-numbers">{figures.as_json(seen)}</div>
    </section>
    """)
    return


@app.cell
def _(figures, lab, mo, seen, setting):
    near = {_name: lab.max_step_size(setting, _name) for _name in ("FedHSA", "LocalSA")}
    mo.Html(f"""
    <section class="fh-card" id="floor">
      {figures.in_html(figures.sentences(setting, seen, near))}
      <h2>The floor: squared bias and noise <span class="fh-badge">exact</span></h2>
      {figures.floor_bars(seen)}
    </section>
    """)
    return


@app.cell
def _(figures, lab, mo, setting):
    both = {_name: lab.paths(setting, _name, 4) for _name in ("LocalSA", "FedHSA")}
    mo.Html(f"""
    <section class="fh-card" id="drift">
      <h2>Why: drift, and how FedHSA steers it back</h2>
      <p>Four rounds from the same start with the same noise, one draw of it. Play them, or move the slider with the
      arrow keys.</p>
      {figures.drift(setting, both)}
    </section>
    """)
    return


@app.cell
def _(figures, mo, seen, setting):
    mo.Html(f"""
    <section class="fh-card" id="agents">
      <h2>How many agents help <span class="fh-badge fh-approx">predicted</span></h2>
      <p>{figures.agents_in_words(seen)} The floor at the number of agents of the slider is exact; elsewhere it is that
      of more or fewer agents like these, to leading order in 1/M.</p>
      {figures.agents(setting, seen)}
    </section>
    """)
    return


@app.cell
def _(figures, lab, mo, setting):
    largest = {_name: lab.max_step_size(setting, _name) for _name in setting.methods}
    mo.Html(f"""
    <section class="fh-card" id="steps">
      <h2>The largest stable step size</h2>
      <p>For FedHSA, LocalSA and SynchronisedSA the limit is exact. For methods with memory it is found by a scan with
      twelve step sizes per decade, which could miss a narrow unstable range below it.</p>
      {figures.step_sizes(setting, largest)}
    </section>
    """)
    return


@app.cell
def _(lab, mo):
    budget = mo.ui.dropdown(["10", "20", "40", "80"], value="40", label="after", allow_select_none=False)
    unit = mo.ui.dropdown(list(lab.UNITS), value="exchanges", label="", allow_select_none=False)
    return budget, unit


@app.cell
def _(budget, figures, lab, mo, setting, unit):
    won = lab.winners(setting, int(budget.value), unit.value)
    mo.Html(f"""
    <section class="fh-card" id="winners">
      <h2>Which method wins <span class="fh-badge">exact</span></h2>
      <p>The method with the smallest mean-square error after the budget. FedHSA needs two exchanges in a round and the
      others one. Pale cells are ties within one per cent. In hatched cells, every method is unstable or ends above the
      starting error. The ring is this setting.</p>
      <div class="fh-tools">{budget}{unit}</div>
      {figures.winner_map(won, setting, int(budget.value), unit.value)}
    </section>
    """)
    return


@app.cell
def _(figures, lab, mo, seeds, setting):
    link = figures.link(lab.to_link(setting))
    mo.Html(f"""
    <section class="fh-card" id="code">
      <h2>The same numbers elsewhere</h2>
      {figures.code(lab.python_code(setting), "Python: the exact errors and floors on this page")}
      {figures.code(lab.command(setting), "Command line: the same laws")}
      {figures.code(lab.command(setting, "run", seeds=int(seeds.value)), "Command line: the simulation")}
      {link}
    </section>
    """)
    return


if __name__ == "__main__":
    app.run()
