# /// script
# [tool.marimo.display]
# theme = "system"
# ///
"""The lab's second page: agents in different grid worlds learn one table of values, with sliders."""

import marimo

app = marimo.App(width="full", app_title="fedhsa lab: grid worlds", css_file="look.css", html_head_file="head.html")


@app.cell
def _():
    import dataclasses
    import time

    import marimo as mo

    from fedhsa.lab import figures, telling, world_figures, worlds

    return dataclasses, figures, mo, telling, time, world_figures, worlds


@app.cell
def _(mo):
    mo.Html("""
    <header class="fh-header">
      <p class="fh-nav"><b>fedhsa lab</b><a href="/">Quadratic problem</a>
        <span aria-current="page">Grid worlds</span></p>
      <h1>Different worlds, one table of values.</h1>
      <p>Each agent walks in its own grid world and would learn its own values. Together, with <i>H</i> local steps
      between two exchanges, the agents look for one table: the root of the <i>average</i> Bellman operator. Move the
      sliders: values, roots and limits are exact, computed without a simulation.</p>
    </header>
    """)
    return


@app.cell
def _(mo, worlds):
    restored = worlds.Setting.restored(mo.query_params().to_dict())
    get_agent, set_agent = mo.state(0)

    def slider(name, label, steps):
        """Return a slider at the value that is nearest to the restored setting."""
        value = getattr(restored, name)
        nearest = min(steps, key=lambda step: abs(step - value))
        return mo.ui.slider(steps=steps, value=nearest, label=label, show_value=True, full_width=True)

    def dropdown(name, label, options):
        """Return a dropdown at the restored setting, or at the first option."""
        chosen = getattr(restored, name)
        value = options.get(chosen, next(iter(options.values())))
        swapped = {words: key for key, words in options.items()}
        return mo.ui.dropdown(swapped, value=value, label=label, allow_select_none=False, full_width=True)

    sliders = {
        "num_agents": ("agents M", [*range(1, 13)]),
        "heterogeneity": ("heterogeneity", [k / 10 for k in range(11)]),
        "difficulty": ("slipperiness, or wind", [round(0.05 * k, 2) for k in range(13)]),
        "local_steps": ("local steps H", [1, 2, 5, 10, 20, 30, 50, 70, 100, 150, 200]),
        "step_size": ("step size η", [0.005, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7, 1.0]),
        "discount": ("discount factor", [0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99]),
        "key": ("which worlds", [*range(20)]),
        "rounds": ("rounds", [20, 50, 100, 200, 400, 1000]),
    }
    dropdowns = {
        "task": ("the agents learn", worlds.TASKS),
        "world": ("world", worlds.available()),
        "policy": ("policy that is evaluated", worlds.POLICIES),
        "sampling": ("observations", worlds.SAMPLINGS),
    }
    controls = mo.ui.dictionary(
        {name: slider(name, *described) for name, described in sliders.items()}
        | {name: dropdown(name, *described) for name, described in dropdowns.items()}
    )
    mo.Html(f"""
    <section class="fh-controls" aria-label="Settings">
      <h2>Settings</h2>
      <div class="fh-sliders">{"".join(f"{control}" for control in controls.values())}</div>
    </section>
    """)
    return controls, get_agent, set_agent, sliders


@app.cell
def _(controls, worlds):
    setting = worlds.Setting(**controls.value)
    found = worlds.solve(setting)
    return found, setting


@app.cell
def _(found, mo, set_agent, world_figures):
    def pick(agent):
        return mo.ui.button(
            label=f'<span class="fh-pick">agent {agent + 1}{world_figures.world(found, agent, numbers=False)}</span>',
            on_click=lambda _: set_agent(agent),
            kind="neutral",
            tooltip=f"Select agent {agent + 1}",
        )

    picks = mo.ui.array([pick(agent) for agent in range(found.model.num_agents)])
    return (picks,)


@app.cell
def _(found, get_agent, mo, picks, telling, world_figures):
    agent = min(get_agent(), found.model.num_agents - 1)
    _buttons = "".join(
        f'<div class="fh-choice" data-agent="{_i + 1}" aria-current="{str(_i == agent).lower()}">{_pick}</div>'
        for _i, _pick in enumerate(picks)
    )
    mo.Html(f"""
    <section class="fh-card" id="worlds">
      <h2>The agents' worlds, with their own values <span class="fh-badge">exact</span></h2>
      {telling.says(telling.about_agent(found, agent))}
      <div class="fh-choices">{_buttons}</div>
      {world_figures.marks(found)}
    </section>
    """)
    return (agent,)


@app.cell
def _(agent, found, mo, telling, world_figures):
    _returns = world_figures.returns_table(found) if found.setting.task == "control" else ""
    mo.Html(f"""
    <section class="fh-card" id="common">
      <h2>The common table, and where the methods go <span class="fh-badge">exact</span></h2>
      {telling.says(telling.about_root(found), telling.about_limits(found))}
      {world_figures.common(found, agent)}
      {_returns}
    </section>
    """)
    return


@app.cell
def _(mo):
    seeds = mo.ui.dropdown(["8", "16", "32"], value="16", label="seeds", allow_select_none=False)
    simulate = mo.ui.run_button(label="Simulate", tooltip="Run both methods and draw the runs over these curves")
    return seeds, simulate


@app.cell
def _(dataclasses, mo, seeds, setting, simulate, worlds):
    simulated = None
    if simulate.value:
        with mo.status.spinner(title="Simulating", remove_on_exit=True):
            simulated = worlds.simulate(dataclasses.replace(setting, seeds=int(seeds.value)))
    return (simulated,)


@app.cell
def _(found, mo, setting, sliders, time, worlds):
    with mo.status.spinner(title="Deriving the law of the noise", remove_on_exit=True):
        _begin = time.perf_counter()
        noisy = worlds.predicted(found)
        took = time.perf_counter() - _begin
    if setting.noisy:  # so that this slider moves quickly from now on
        worlds.prepare(setting, sliders["step_size"][1])
    return noisy, took


@app.cell
def _(mo, noisy, seeds, simulate, simulated, telling, took, world_figures):
    _badge = (
        '<span class="fh-badge fh-approx">predicted</span>'
        if noisy.setting.noisy
        else '<span class="fh-badge">exact</span>'
    )
    _learned = "" if simulated is None else world_figures.learned(noisy, simulated)
    mo.Html(f"""
    <section class="fh-card" id="errors">
      <h2>Error by rounds {_badge}</h2>
      <div class="fh-tools">{seeds}{simulate}</div>
      {world_figures.curves(noisy, simulated)}
      {telling.says(telling.about_errors(noisy))}
      {telling.warned(telling.doubts(noisy))}
      {_learned}
      <p class="fh-note">The law of the noise was derived in {took:.2f} s.</p>
      <div hidden id="fh-numbers">{world_figures.as_json(noisy, simulated)}</div>
    </section>
    """)
    return


@app.cell
def _(dataclasses, figures, mo, seeds, setting):
    _shown = dataclasses.replace(setting, seeds=int(seeds.value))
    _file = " (save the Python as grid_world.py first)" if "grid_world.py" in _shown.command() else ""
    mo.Html(f"""
    <section class="fh-card" id="code">
      <h2>The same numbers elsewhere</h2>
      {figures.code(_shown.python(), "Python: the simulation, and theory's full prediction")}
      {figures.code(_shown.command(), "Command line: the simulation" + _file)}
      {figures.link(setting.restores or {"num_agents": str(setting.num_agents)})}
    </section>
    """)
    return


if __name__ == "__main__":
    app.run()
