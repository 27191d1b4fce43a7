"""Records terminal.svg: commands with what they print, as an animation that needs no script and no network."""

import html
import os
import pathlib
import subprocess
import sys
import tempfile

COMMANDS = (
    ("fedhsa analyze quadratic --option b_level=10.0 --target 1e-4 --no-plot", ("Predictions", "In words"), ()),
    ("fedhsa run quadratic --option b_level=10.0 --rounds 60 --seeds 16", (), ()),
    ("fedhsa compare quadratic --option b_level=10.0 --algorithm FedHSA LocalSA SCAFFLSA", (), ("--no-progress",)),
)
"""What is typed; where the shown part of the output begins and ends, where it is long; flags that are not shown."""
COLUMNS, ROWS = 96, 24
WIDTH, LINE, TOP, SIDE = 7.8, 17.0, 46.0, 18.0
"""Pixels: of a letter and of a line, above the first line and beside it."""
TYPING, PRINTING, READING = 1.2, 0.05, 5.0
"""Seconds: for a command, for a line, and until the next command."""
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def screens() -> list[list[str]]:
    """For each command what is typed, and then what is printed."""
    found = []
    environment = os.environ | {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb"}
    with tempfile.TemporaryDirectory() as folder:
        for command, part, hidden in COMMANDS:
            words = [sys.executable, "-m", *command.split(), *hidden]
            done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=True)
            printed = done.stdout.strip().splitlines()
            lines = [
                line[at : at + COLUMNS].rstrip() for line in printed for at in range(0, max(len(line), 1), COLUMNS)
            ]
            if part:
                lines = ["...", *lines[lines.index(part[0]) : lines.index(part[1])]]
            shown = [f"$ {command}", *lines]
            found.append(shown if len(shown) <= ROWS else [*shown[: ROWS - 1], "..."])
    return found


def picture(found: list[list[str]]) -> str:
    """The animation: every line appears in its turn, and a screen goes when the next command is typed."""
    ends, clock = [], 0.0
    for lines in found:
        clock += TYPING + PRINTING * len(lines) + READING
        ends.append(clock)
    width, height = COLUMNS * WIDTH + 2 * SIDE, TOP + ROWS * LINE + 10
    rules, texts = [], []
    for screen, lines in enumerate(found):
        begin = ends[screen - 1] if screen else 0.0
        for row, line in enumerate(lines):
            if not line:
                continue
            at = begin + (0.0 if row == 0 else TYPING + PRINTING * row)
            name, part = f"s{screen}l{row}", 100 / clock
            on, off = at * part, ends[screen] * part
            before = f"0%,{on:.2f}%{{opacity:0}}{on + 0.01:.2f}%" if on > 0 else "0%"
            after = f"{off:.2f}%,100%{{opacity:0}}" if off < 99.9 else ""
            rules.append(f"@keyframes {name}{{{before},{off - 0.01:.2f}%{{opacity:1}}{after}}}")
            rules.append(f".{name}{{animation:{name} {clock:.1f}s step-end infinite}}")
            kind = "typed" if row == 0 else "printed"
            place = f'x="{SIDE:g}" y="{TOP + LINE * (row + 0.75):g}" textLength="{len(line) * WIDTH:g}"'
            texts.append(f'<text class="{kind} {name}" {place}>{html.escape(line)}</text>')
    hidden = [f".s{screen}l{row}" for screen, lines in enumerate(found) if screen for row in range(len(lines))]
    still = f"@media (prefers-reduced-motion){{text{{animation:none!important}}{','.join(hidden)}{{display:none}}}}"
    dots = "".join(f'<circle cx="{22 + 20 * k}" cy="20" r="6" fill="{c}"/>' for k, c in enumerate(DOTS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img" '
        f'aria-label="fedhsa analyze, run and compare in a terminal"><style>text{{font:13px {FONT};white-space:pre}}'
        f".typed{{fill:#8be9a0;font-weight:bold}}.printed{{fill:#e6e6e6}}{''.join(rules)}{still}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#1e2127"/>{dots}{"".join(texts)}</svg>\n'
    )


DOTS = ("#ff5f57", "#febc2e", "#28c840")


if __name__ == "__main__":
    pathlib.Path("terminal.svg").write_text(picture(screens()), encoding="utf-8")
