"""The sections of the page that present the results: each experiment, and the checks of each claim."""

import re
from html import escape
from typing import Any
from urllib.parse import quote

from ..._numbers import duration, interval, typeset
from ...statistics import LEVEL
from ..run.store import FIGURES, StoredStudy
from ..study.checks import FAIL, PASS, UNDECIDED, Check
from ..study.claims import Claim
from .elements import (
    attribute,
    chapter,
    chip,
    day,
    heading,
    items,
    picture,
    plain_words,
    setting,
    shape,
    slug,
    table,
    words,
)

FAMILIES = {
    "quadratic": "Quadratic losses",
    "nonconvex": "Nonconvex agents",
    "td": "TD learning",
    "finite-sum": "Finite sums",
    "field": "The field",
    "rl": "Reinforcement learning",
}
STUDIES = "Studies"
FILES = {".svg": "SVG", ".png": "PNG", ".pdf": "PDF", ".csv": "CSV", ".npz": "NPZ"}
BROAD = 600
"""The width in pixels above which a figure is wider than one journal column."""
SHOWN_ELSEWHERE = ("name", "title", "source", "choices")


def anchor(section: StoredStudy) -> str:
    """Returns the anchor of links to an experiment."""
    return slug(section.experiment.name)


def group_of(section: StoredStudy) -> str:
    """Returns the heading of the experiments among which it stands."""
    return FAMILIES.get(section.experiment.name.partition("/")[0], STUDIES)


def figure_of(section: StoredStudy, caption: str) -> str:
    """Returns its figure with a description in words for readers who cannot see it."""
    alt = " ".join([f"{section.experiment.title}.", *section.sentences]).replace("`", "")
    kind = "broad" if is_broad(section) else "column"
    inner = picture(section.svg, plain_words(alt))
    return f'<figure class="{kind}">\n<div class="frame">{inner}</div>\n<figcaption>{caption}</figcaption>\n</figure>\n'


def is_broad(section: StoredStudy) -> bool:
    """Returns whether its figure has panels side by side and is wider than one column."""
    size = shape(section.svg)
    return size is not None and size[0] > BROAD


def family(name: str, group: list[StoredStudy], rows: dict[Check, str]) -> str:
    """Returns the experiments of one family as HTML; `rows` has the anchors of their checks in the table of claims."""
    inner = "".join(_experiment(section, rows) for section in group)
    return chapter(slug(name), name, f'<div class="studies">\n{inner}</div>\n')


def _experiment(section: StoredStudy, ids: dict[Check, str]) -> str:
    experiment, manifest = section.experiment, section.manifest
    checks = items(
        f'{chip(check.verdict)} <a href="#{ids[check]}">{words(title_of(check))}</a> <small>claim {check.claim}</small>'
        for check in section.checks
    )
    notes = items(words(note) for note in experiment.notes())
    command = manifest.get("command") or f"fedhsa reproduce {section.experiment.name}"
    first, *others = [f"<p>{words(sentence)}</p>\n" for sentence in section.sentences] or [""]
    again = f'<p class="run"><span class="label">{_runtime(manifest)}</span> <code>{escape(command)}</code></p>\n'
    return (
        f'<article{attribute("class", "wide" * is_broad(section))} aria-labelledby="{escape(anchor(section))}">\n'
        f'<h3 id="{escape(anchor(section))}">{words(experiment.title)} '
        f'<span class="source">{words(experiment.source)}</span></h3>\n'
        f"{figure_of(section, first)}"
        + _details("More about it", "".join(others))
        + _details(_counted(section.checks), f'<div class="checks">\n{checks}</div>\n' if checks else "")
        + _details("Our choices where the paper is silent", f'<div class="aside">\n{notes}</div>\n' if notes else "")
        + _details("Assumptions of the theory", _assumptions(section))
        + _details("Settings, files and command", _settings(manifest.get("settings") or {}) + _files(section) + again)
        + "</article>\n"
    )


def _counted(checks: list[Check]) -> str:
    """Returns the heading above the checks: their number, and the checks that do not pass."""
    count = {verdict: sum(check.verdict == verdict for check in checks) for verdict in (PASS, FAIL, UNDECIDED)}
    said = [f"{count[verdict]} {verdict}" for verdict in count if count[verdict]]
    return f"{'One check' if len(checks) == 1 else f'{len(checks)} checks'}: {', '.join(said)}"


WORDS = {
    "root": "FedHSA reaches the root",
    "rate": "FedHSA is as fast as predicted",
    "bias": "Local SA stops at its predicted bias",
    "order": "Whose floor is lower",
    "falls": "More agents lower the floor",
    "slope": "How the floor falls with the number of agents",
    "lipschitz": "Lipschitz constant",
    "growth": "Growth of the operators",
    "monotone": "Strong monotonicity",
    "assumptions": "Assumptions 1 to 4",
    "condition": "The condition of the corollary",
    "condition outside": "The condition, outside it",
    "outside": "Outside the condition",
    "outside, predicted": "Outside the condition, as predicted",
}
"""The subjects of checks with a short name."""
SPELLED = {"td": "TD", "finite-sum": "finite sum", "LocalSA": "Local SA", "rl": "RL"}


def title_of(check: Check) -> str:
    """Returns the name of a check in words.

    !!! example
        >>> title_of(Check(7, "drift: td, price at 2 x", "", 1.0, 1.0, None, "", "pass"))
        'TD, price at 2 times'
    """
    name = check.name.partition(": ")[2] or check.name
    if name in WORDS:
        return WORDS[name]
    name = re.sub(r"[\w-]+", lambda found: SPELLED.get(found[0], found[0]), name)
    name = re.sub(r"(?<=\d) x\b", " times", name)
    return name[:1].upper() + name[1:]


def _files(section: StoredStudy) -> str:
    manifest = section.manifest
    names = [*(manifest.get("figures") or FIGURES), *(manifest.get("data") or ("data.csv", "data.npz"))]
    labels = {name: FILES.get(f".{name.rpartition('.')[2]}", name) for name in names} | {"manifest.json": "manifest"}
    folder = str(manifest.get("folder") or section.experiment.name)
    links = " ".join(
        f'<a href="{escape(quote(f"{folder}/{name}"))}">{escape(label)}</a>' for name, label in labels.items()
    )
    return f'<p class="files">In the folder <code>{escape(folder)}</code> beside this page: {links}</p>\n'


def _runtime(manifest: dict[str, Any]) -> str:
    seconds = manifest.get("seconds")
    when = f", {day(manifest['finished'])}" if manifest.get("finished") else ""
    return f"Took {duration(seconds)}{when}. To make it again:" if seconds is not None else "To make it:"


def _settings(settings: dict[str, Any]) -> str:
    rows = "".join(
        f"<div><dt><code>{escape(name)}</code></dt> <dd><code>{setting(value)}</code></dd></div>\n"
        for name, value in settings.items()
        if name not in SHOWN_ELSEWHERE
    )
    return f'<dl class="settings">\n{rows}</dl>\n' if rows else ""


def _assumptions(section: StoredStudy) -> str:
    rows = [(heading(words(name)), chip(verdict), words(reason)) for name, verdict, reason in _examined(section)]
    return table("Assumptions and conditions, examined", ("Which", "Verdict", "Why"), rows) if rows else ""


def _examined(section: StoredStudy) -> list[list[str]]:
    return section.outcome.facts.get("assumptions") or []


def _details(summary: str, inner: str, shown: bool = False) -> str:
    """Returns a block that a reader can open; an empty string if there is no content."""
    return f"<details{' open' * shown}>\n<summary>{escape(summary)}</summary>\n{inner}</details>\n" if inner else ""


def claims_table(claims: list[Claim], sections: list[StoredStudy]) -> str:
    """Returns the table of all checks, grouped by claim."""

    def row(check: Check) -> tuple[str, ...]:
        study = check.name.partition(": ")[0]
        statement = (
            f'{words(title_of(check))} <a class="source" href="#{slug(study)}">{words(titles.get(study, study))}</a>'
            f"<small>{words(check.statement)}</small><small>Rule: {words(check.rule)}.</small>"
        )
        numbers = (typeset(check.measured), interval(check.interval) or "none", words(typeset(check.expected)))
        return chip(check.verdict), heading(statement), *numbers

    titles = {section.experiment.name: section.experiment.title for section in sections}
    anchors = row_ids(claims)
    header = ("Verdict", "Check", "Measured", f"{100 * LEVEL:g} % interval", "Expected")
    parts = []
    for claim in claims:
        ids = [anchors[check] for check in claim.checks]
        inner = table(f"Checks of claim {claim.number}", header, map(row, claim.checks), "checked", ids)
        inner = inner if claim.checks else ""
        if claim.number == 9:
            inner += _overview(sections)
        shown = claim.verdict not in (PASS, None)  # checks that do not pass are shown open
        parts.append(
            f'<h3 id="claim-{claim.number}">{claim.number}. {escape(claim.title)} {chip(claim.verdict)}</h3>\n'
            f"<p>{words(claim.statement)}</p>\n"
            f"{_details(_counted([*claim.checks]) if claim.checks else 'Problem by problem', inner, shown)}"
        )
    return chapter("claims", "The claims, check by check", "".join(parts))


def _overview(sections: list[StoredStudy]) -> str:
    """Returns the assumptions and constants of all examined problems, side by side."""
    examined = [section for section in sections if _examined(section)]
    verdicts = [{name: chip(verdict) for name, verdict, _ in _examined(section)} for section in examined]
    constants = [
        {name: escape(typeset(value, 3)) for name, value in (section.outcome.facts.get("constants") or {}).items()}
        for section in examined
    ]
    rows = [
        (heading(words(name.replace("_", " "))), *(column.get(name, "") for column in columns))
        for columns in (verdicts, constants)
        for name in dict.fromkeys(name for column in columns for name in column)
    ]
    links = (f'<a href="#{anchor(s)}">{escape(s.experiment.name).replace("/", "/<wbr>")}</a>' for s in examined)
    return table("Assumptions of the theory on each problem", ("Which", *links), rows, "overview") if rows else ""


def row_ids(claims: list[Claim]) -> dict[Check, str]:
    """Returns the anchors of the rows of the claims' tables, one for each check."""
    return {check: f"check-{claim.number}-{k}" for claim in claims for k, check in enumerate(claim.checks, 1)}
