"""The pictures and sentences of the lab's first page."""

import json
import math
import urllib.parse
from collections.abc import Mapping
from typing import Any

import numpy as np

from .._numbers import tick
from ..plots import COLOURS
from ..plots._style import graded_widths
from .quadratic import DIM, Paths, Seen, Setting, WinnerMap, problem
from .svg import Plot, escape, legend, picture, points, tag

AXES = {"rounds": "round", "exchanges": "exchanges with the server", "observations": "observations of each agent"}
"""The units of the horizontal axis of the curves."""
WIDE = 640
"""The width of pictures in their units."""
DECADES = 9
"""The largest number of decades on the error axis below the highest point."""
DRIFT = {"LocalSA": "each agent walks towards its own root", "FedHSA": "the averaged operator steers each step"}


def _spent(seen: Seen, axis: str) -> np.ndarray:
    """Return the position of each round on the horizontal axis."""
    return seen.spent(axis) * np.arange(len(seen.errors))


def curves(
    seen: Mapping[str, Seen], *, axis: str = "rounds", simulated: Mapping[str, Any] | None = None, seeds: int = 0
) -> str:
    """Draw the exact error curves, and with `simulated` the mean and the interval of runs over them.

    `simulated` has for each method the mean, the lower and the upper end of the interval, one value per round.
    """
    simulated = simulated or {}
    starts = [one.errors[0] for one in seen.values()]
    finite = np.concatenate([one.errors[np.isfinite(one.errors)] for one in seen.values() if one.stable] or [starts])
    positive = finite[finite > 0]
    highest = max(max(starts), 1e-12) * 3
    lowest = max(float(positive.min()) / 2 if len(positive) else highest / 1e3, highest / 10**DECADES)
    low, high = 10 ** math.floor(math.log10(lowest)), 10 ** math.ceil(math.log10(highest))
    end = _spent(seen["LocalSA"], axis)[-1]
    plot = Plot(WIDE, 360, x=(0.0, float(max(end, 1))), y=(low, high), log_y=True)
    order = list(seen.values())[::-1]  # FedHSA is drawn last, on top; a curve that others cover is wider
    widths = graded_widths([(_spent(one, axis), one.errors) for one in order])
    for one, width in zip(order, widths, strict=True):
        name, at, colour = one.name, _spent(one, axis), COLOURS[one.name]
        keep = at <= end
        state = f"{name}: floor {tick(one.floor.total)}" if one.stable else f"{name} diverges"
        plot.line(at[keep], one.errors[keep], colour, title=state, width=1.6 * width)
    for name, (mean, lower, upper) in simulated.items():
        at = seen[name].spent(axis) * np.arange(len(mean))
        keep = at <= end
        plot.band(at[keep], np.maximum(lower[keep], low / 10), upper[keep], COLOURS[name])
        words = f"{name}: mean of {seeds} seeds"
        plot.line(at[keep], mean[keep], "var(--fh-ink)", width=1.5, dash="1.5 4.5", title=words)
    plot.axes(AXES[axis], "mean-square error")
    words = "; ".join(
        f"{name} {'ends at ' + tick(float(one.errors[-1])) if one.stable else 'diverges'}" for name, one in seen.items()
    )
    entries = [(f"{name} (diverges)" if not one.stable else name, COLOURS[name], "line") for name, one in seen.items()]
    if simulated:
        entries += [(f"mean of {seeds} seeds", "var(--fh-ink)", "dash"), ("95 % interval", "var(--fh-soft)", "band")]
    drawn = plot.render(label=f"Exact mean-square error by {AXES[axis]}: {words}.", cls="fh-curves")
    return legend(entries) + drawn


def floor_bars(seen: Mapping[str, Seen]) -> str:
    """Draw each method's floor as a bar that is split into squared bias and noise, with the numbers next to it."""
    rows = []
    best = min((one.floor.total for one in seen.values() if one.stable), default=math.inf)
    for name, one in seen.items():
        colour = COLOURS[name]
        if not one.stable:
            bar = '<div class="fh-bar fh-bar-none">diverges: there is no floor</div>'
            numbers = f"grows by {tick(one.growth)} per round" if one.growth < 1e6 else "grows very fast"
        else:
            bias, noise = one.floor
            total = one.floor.total or 1.0
            share = 100 * bias / total
            full, pale = (f'style="width:{part:.2f}%;background:{colour}"' for part in (share, 100 - share))
            bar = (
                f'<div class="fh-bar"><span {full} title="squared bias {tick(bias)}"></span>'
                f'<span {pale} class="fh-pale" title="noise {tick(noise)}"></span></div>'
            )
            ratio = total / best if best > 0 else 1.0
            versus = "lowest" if ratio < 1.005 else f"{tick(float(f'{ratio:.2g}'))} times the lowest"
            zero = "0" if bias == 0 else tick(bias)
            numbers = f"<b>{tick(total)}</b> = {zero} bias² + {tick(noise)} noise <i>{versus}</i>"
        rows.append(f'<div class="fh-row"><div class="fh-name">{escape(name)}</div>{bar}<div>{numbers}</div></div>')
    key = (
        '<div class="fh-legend"><span class="fh-key"><span class="fh-swatch"></span>squared bias</span>'
        '<span class="fh-key"><span class="fh-swatch fh-pale"></span>noise</span></div>'
    )
    return f'<div class="fh-bars">{"".join(rows)}</div>{key}'


def step_sizes(setting: Setting, largest: Mapping[str, float]) -> str:
    """Draw the step size on a line on which the largest stable step size of each method is marked."""
    known = {name: value for name, value in largest.items() if 0 < value < math.inf}
    values = [setting.step_size, *known.values()]
    low, high = min(1e-3, *values) / 1.5, max(1.0, *values) * 1.5
    rows = list(known)
    height = 84 + 24 * len(rows)
    plot = Plot(WIDE, height, x=(low, high), y=(0.0, 1.0), log_x=True, margin=(30, 76, 56, 156))
    for k, name in enumerate(rows):
        y, at = 40.0 + 24 * k, plot.x(known[name])
        colour = COLOURS[name]
        stable, rest = {"x1": plot.x.start, "x2": at}, {"x1": at, "x2": plot.x.end}
        plot.parts.append(tag("line", **stable, y1=y, y2=y, stroke=colour, stroke_width=8, stroke_linecap="round"))
        plot.parts.append(tag("line", **rest, y1=y, y2=y, cls="fh-beyond"))
        plot.text(plot.x.start - 12, y + 5, name, anchor="end")
        plot.text(plot.width - 4, y + 5, tick(known[name]), anchor="end", cls="fh-tick")
    at = plot.x(setting.step_size)
    plot.over.append(tag("line", x1=at, x2=at, y1=24.0, y2=plot.y.start, cls="fh-now"))
    anchor = "end" if at > plot.x.end - 90 else "middle"
    plot.text(at, 16, f"η = {tick(setting.step_size)}", anchor=anchor, cls="fh-label fh-strong")
    plot.axes("step size η; a bar ends at the largest stable step size", "", y_ticks=[])
    words = ", ".join(f"{name} {tick(value)}" for name, value in known.items())
    return plot.render(label=f"Step size {tick(setting.step_size)}. Largest stable step sizes: {words}.")


def agents(setting: Setting, seen: Mapping[str, Seen]) -> str:
    """Draw the floor against the number of agents, with the number beyond which more agents do not help."""
    stable = {name: one for name, one in seen.items() if one.stable and one.floor.total > 0}
    numbers = np.logspace(0, 4, 81)
    if not stable:
        return '<p class="fh-note">All methods diverge at this setting, so there is no floor.</p>'
    floors = {name: one.floor_at(numbers) for name, one in stable.items()}
    low = 10 ** math.floor(math.log10(min(values.min() for values in floors.values())))
    high = 10 ** math.ceil(math.log10(max(values.max() for values in floors.values())))
    plot = Plot(WIDE, 280, x=(1.0, 1e4), y=(low, max(high, 10 * low)), log_x=True, log_y=True)
    for name, values in floors.items():
        one = stable[name]
        plot.line(numbers, values, COLOURS[name], title=name, width=3.0 if name == "FedHSA" else 2.3)
        at = one.saturation_agents
        if 1 <= at <= 1e4:
            cx, cy = plot.x(at), plot.y(one.floor_at(at))
            plot.over.append(tag("circle", cx=cx, cy=cy, r=5.5, fill=COLOURS[name], cls="fh-dot"))
            right = at > 300
            text = f"bias = noise at {tick(round(at))} agents"
            plot.text(cx + (-9 if right else 9), cy - 9, text, anchor="end" if right else "start")
    plot.vertical(setting.num_agents, f"M = {setting.num_agents}", "var(--fh-soft)")
    plot.axes("number of agents", "floor")
    label = "Floor against the number of agents: " + agents_in_words(seen)
    return legend([(name, COLOURS[name], "line") for name in floors]) + plot.render(label=label)


def agents_in_words(seen: Mapping[str, Seen]) -> str:
    """State for each method the number beyond which more agents do not help."""
    unlimited = [name for name, one in seen.items() if math.isinf(one.saturation_agents)]
    listed = " and ".join(filter(None, [", ".join(unlimited[:-1]), *unlimited[-1:]]))
    parts = [f"The floor of {listed} falls like 1/M for any number of agents M."] if unlimited else []
    for name, one in seen.items():
        at = one.saturation_agents
        if at < 1:
            parts.append(f"The squared bias of {name} exceeds its noise even with one agent: more agents do not help.")
        elif at < math.inf:
            parts.append(f"Beyond about {tick(float(f'{at:.2g}'))} agents, more of them hardly help {name}.")
    return " ".join(parts) or "No method is stable at this setting."


def winner_map(found: WinnerMap, setting: Setting, budget: int, unit: str) -> str:
    """Draw the best method in each cell of the map over local steps and step sizes; cells without one are hatched."""
    wins, tied = found.winners, found.tied
    rows, columns = wins.shape
    left, top, right, bottom, cell = 78, 10, 12, 62, 28
    wide = (WIDE - left - right) / columns
    parts = [
        '<defs><pattern id="fh-hatch" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="7" height="7" class="fh-hatch-ground"/><line x1="0" y1="0" x2="0" y2="7" class="fh-hatch"/>'
        "</pattern></defs>"
    ]
    for j in range(rows):
        y = top + cell * (rows - 1 - j)
        for k in range(columns):
            winner, x = wins[j, k], left + wide * k
            setting_here = f"H = {found.local_steps[j]}, η = {tick(float(found.step_sizes[k]))}"
            if winner < 0:
                title = f"{setting_here}: every method is unstable or ends above the starting error"
                look = {"fill": "url(#fh-hatch)"}
            else:
                lines = [
                    f"{name}: {tick(float(value)) if np.isfinite(value) else 'unstable, or above the starting error'}"
                    for name, value in zip(found.names, found.errors[:, j, k], strict=True)
                ]
                title = f"{setting_here}\n" + "\n".join(lines)
                look = {"fill": COLOURS[found.names[winner]], "fill_opacity": 0.45 if tied[j, k] else 0.92}
            box = {"x": x, "y": float(y), "width": wide, "height": float(cell), "cls": "fh-cell"}
            parts.append(tag("rect", tag("title", escape(title)), **box, **look))
    for j, H in enumerate(found.local_steps):
        y = top + cell * (rows - 1 - j) + cell / 2 + 4
        parts.append(tag("text", str(H), x=left - 8, y=y, text_anchor="end", cls="fh-tick"))
    for k in range(0, columns, 5):
        x = left + wide * (k + 0.5)
        shown = tick(float(found.step_sizes[k]))
        parts.append(tag("text", shown, x=x, y=top + cell * rows + 22.0, text_anchor="middle", cls="fh-tick"))
    across, up = (left + WIDE - right) / 2, top + cell * rows / 2
    look = {"text_anchor": "middle", "cls": "fh-label"}
    parts.append(tag("text", "step size η", x=across, y=top + cell * rows + 50.0, **look))
    parts.append(tag("text", "local steps H", x=22, y=up, **look, transform=f"rotate(-90 22 {up:g})"))
    x = left + wide * (0.5 + np.interp(math.log10(setting.step_size), np.log10(found.step_sizes), np.arange(columns)))
    y = top + cell * (rows - 0.5 - np.interp(math.log(setting.local_steps), np.log(found.local_steps), np.arange(rows)))
    here = tag("title", escape(f"This setting: H = {setting.local_steps}, η = {tick(setting.step_size)}"))
    parts.append(tag("circle", here, cx=float(x), cy=float(y), r=8, cls="fh-here"))
    counts = {name: int((wins == i).sum()) for i, name in enumerate(found.names)}
    words = ", ".join(f"{name} in {count}" for name, count in counts.items() if count) or "none is stable"
    label = f"The method with the smallest error after {budget} {unit}, in {wins.size} cells: {words}."
    entries = [(name, COLOURS[name], "box") for name in found.names if counts[name]]
    if (wins < 0).any():
        entries.append(("no stable method gains", "url(#fh-hatch)", "box"))
    drawn = picture(parts, WIDE, top + cell * rows + bottom, label=label, cls="fh-map")
    return legend(entries) + drawn


def drift(setting: Setting, both: Mapping[str, Paths]) -> str:
    """Draw the agents of LocalSA and FedHSA next to each other, with a slider and a button for their local steps."""
    arrays = problem(setting)
    roots, root = arrays.roots, arrays.root
    walked = [found.agents.reshape(-1, DIM) for found in both.values()]
    everything = np.concatenate([root[None], *walked])
    if not np.abs(everything).max() < 1e6:
        return '<p class="fh-note">The agents leave the picture: the method diverges at this setting.</p>'
    low, high = everything.min(0), everything.max(0)
    centre, span = (low + high) / 2, max(float((high - low).max()) * 1.35, 1e-6)
    size = 400.0

    def place(points: np.ndarray) -> np.ndarray:
        scaled = (points - centre) / span * size
        return np.stack([size / 2 + scaled[..., 0], size / 2 - scaled[..., 1]], axis=-1)

    rounds, _, length, _ = both["FedHSA"].agents.shape
    frames = rounds * (length - 1)
    panels = [_panel(name, found, place, roots, root, arrays, span, size) for name, found in both.items()]
    controls = (
        '<div class="fh-controls-row">'
        '<button type="button" class="fh-button" data-fh="play" aria-label="Play the local steps">&#9654; Play</button>'
        f'<input type="range" class="fh-range" data-fh="frame" min="0" max="{frames}" step="1" value="{frames}" '
        f'aria-label="Local step" data-steps="{length - 1}" />'
        f'<output class="fh-frame" data-fh="told">round {rounds}, local step {length - 1}</output></div>'
    )
    entries = (
        '<div class="fh-legend"><span class="fh-key"><svg width="14" height="14" aria-hidden="true">'
        '<circle cx="7" cy="7" r="4.5" class="fh-root"/></svg>an agent\'s own root</span>'
        '<span class="fh-key"><svg width="16" height="16" aria-hidden="true">'
        f'<path d="{_star(8, 8, 7)}" class="fh-star"/></svg>common root θ*</span>'
        '<span class="fh-key"><svg width="22" height="12" aria-hidden="true"><line x1="0" x2="22" y1="6" y2="6" '
        'class="fh-server"/></svg>server, round by round</span></div>'
    )
    shown = f'<div class="fh-two">{"".join(panels)}</div>'
    return f'<div class="fh-play">{controls}{shown}{entries}</div>'


def _panel(
    name: str, found: Paths, place: Any, roots: np.ndarray, root: np.ndarray, arrays: Any, span: float, size: float
) -> str:
    """Draw the plane of one method: level lines of the average loss, roots, and the paths of agents and server."""
    colour, parts = COLOURS[name], []
    loss = -arrays.A.mean(0)
    values, vectors = np.linalg.eigh((loss + loss.T) / 2)
    angles = np.linspace(0, 2 * np.pi, 73)
    for level in (0.08, 0.18, 0.32, 0.5):
        radii = level * span * np.sqrt(values.min() / values)
        ring = root + (np.stack([np.cos(angles), np.sin(angles)], -1) * radii) @ vectors.T
        parts.append(tag("polyline", points=points(*place(ring).T), cls="fh-level"))
    for x, y in place(roots):
        parts.append(tag("circle", cx=float(x), cy=float(y), r=4.0, cls="fh-root"))
    rounds, _, length, _ = found.agents.shape
    for r in range(rounds):
        for path in found.agents[r]:
            line, begin = points(*place(path).T), r * (length - 1)
            parts.append(tag("polyline", points=line, data_points=line, data_from=begin, stroke=colour, cls="fh-agent"))
    heads = place(np.concatenate([found.agents[0, :, :1], *(found.agents[r, :, 1:] for r in range(rounds))], axis=1))
    for head in heads:
        (x, y), track = head[-1], points(*head.T)
        parts.append(tag("circle", cx=float(x), cy=float(y), r=3.6, fill=colour, data_track=track, cls="fh-head"))
    line = points(*place(found.server).T)
    parts.append(tag("polyline", points=line, data_points=line, data_every=length - 1, cls="fh-server"))
    for k, (x, y) in enumerate(place(found.server)):
        parts.append(tag("circle", cx=float(x), cy=float(y), r=4.2, data_round=k, cls="fh-server-dot"))
    x, y = place(root)
    parts.append(tag("path", d=_star(x, y, 10), cls="fh-star"))
    miss = float(np.linalg.norm(found.server[-1] - root))
    label = f"{name}: after {rounds} rounds the common parameter is {tick(miss)} away from the common root."
    drawn = picture(parts, size, size, label=label, cls="fh-plane")
    title = f'<figcaption><b style="color:{colour}">{name}</b>: {DRIFT[name]}</figcaption>'
    return f"<figure>{title}{drawn}</figure>"


def _star(x: float, y: float, radius: float) -> str:
    """Return a star with five points as a path."""
    angles = -np.pi / 2 + np.arange(10) * np.pi / 5
    radii = np.where(np.arange(10) % 2 == 0, radius, 0.42 * radius)
    corners = zip(x + radii * np.cos(angles), y + radii * np.sin(angles), strict=True)
    return f"M{'L'.join(f'{a:.1f} {b:.1f}' for a, b in corners)}Z"


def sentences(setting: Setting, seen: Mapping[str, Seen], largest: Mapping[str, float]) -> list[tuple[str, str]]:
    """Describe the pictures, as `(kind, sentence)` with the kind `plain` or `warning`."""
    found: list[tuple[str, str]] = []
    for name, one in seen.items():
        if not one.stable:
            limit = largest.get(name, math.nan)
            remedy = f" It is stable below η = {tick(limit)}." if 0 < limit < math.inf else ""
            found.append(("warning", f"{name} diverges at this setting: its error grows without bound.{remedy}"))
        elif one.growth > 0.995:
            slow = math.log(0.1) / (2 * math.log(one.growth))
            needed = f"a tenth of the error takes about {tick(float(f'{slow:.1e}'))} rounds"
            found.append(("plain", f"{name} is slow here: {needed}."))
    fed, local = seen["FedHSA"], seen["LocalSA"]
    if local.stable:
        bias = local.floor.bias_square
        share = bias / local.floor.total if local.floor.total else 0.0
        if share > 0.5:
            says = (
                f"LocalSA stops at {tick(local.floor.total)}, and {min(100 * share, 99.9):.3g} % of that is squared "
                "bias: the agents drift towards their own roots between two exchanges, and more rounds do not remove "
                "it."
            )
        elif setting.local_steps == 1:
            says = "With one local step there is no drift: LocalSA and FedHSA do the same."
        else:
            says = f"The floor of LocalSA is mostly noise here; its squared bias is {tick(bias)}."
        found.append(("plain", says))
    if fed.stable and local.stable and fed.floor.total > 0:
        ratio = local.floor.total / fed.floor.total
        if ratio > 1.05:
            lower = f"its floor is {tick(fed.floor.total)}, {tick(float(f'{ratio:.2g}'))} times lower than LocalSA's."
            found.append(("plain", f"FedHSA has no bias: {lower}"))
    return found


def in_html(found: list[tuple[str, str]]) -> str:
    """Return the sentences as HTML, warnings first."""
    warnings = [text for kind, text in found if kind == "warning"]
    plain = " ".join(escape(text) for kind, text in found if kind == "plain")
    boxes = "".join(f'<p class="fh-warning" role="alert"><b>Warning.</b> {escape(text)}</p>' for text in warnings)
    if not plain:
        return f'<div class="fh-says">{boxes}</div>'
    return f'<div class="fh-says" aria-live="polite">{boxes}<p>{plain}</p></div>'


def code(text: str, name: str) -> str:
    """Return a block of code with a button that copies it."""
    return _copied(name, "copy", f'<pre tabindex="0"><code>{escape(text)}</code></pre>')


def link(words: Mapping[str, str]) -> str:
    """Return the link that restores a setting, with a button that copies it; the page shows it in the address bar."""
    shown = escape("?" + urllib.parse.urlencode(words, safe=","))
    inside = f'<p class="fh-link"><a data-fh-link="{shown}" href="{shown}">{shown}</a></p>'
    return _copied("A link that restores this setting", "copy-link", inside)


def _copied(name: str, action: str, inside: str) -> str:
    button = f'<button type="button" class="fh-button" data-fh="{action}">Copy</button>'
    head = f'<div class="fh-code-head"><span>{escape(name)}</span>{button}</div>'
    return f'<div class="fh-code">{head}{inside}</div>'


def as_json(seen: Mapping[str, Seen]) -> str:
    """Return the numbers on the page, for tests and for other programs."""
    numbers = {
        name: {"error": float(one.errors[-1]), "floor": one.floor.total, "stable": one.stable}
        for name, one in seen.items()
    }
    return json.dumps(numbers)
