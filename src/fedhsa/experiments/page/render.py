"""The page of a reproduction: one self-contained HTML file."""

import importlib.resources
from html import escape

from ..._numbers import duration, typeset
from ...statistics import LEVEL
from ..run.store import StoredStudy
from ..study.checks import FAIL, PASS, UNDECIDED
from ..study.claims import CLAIMS, Claim, finding
from .elements import chapter, chip, day, heading, items, slug, table, words
from .report import Report
from .sections import FAMILIES, STUDIES, anchor, claims_table, family, figure_of, group_of, is_broad, row_ids

TITLE = "FedHSA, reproduced"
PAPER = (
    "F. Zhu, R. W. Heath Jr. and A. Mitra, <cite>Achieving Tighter Finite-Time Rates for Heterogeneous Federated "
    'Stochastic Approximation under Markovian Sampling</cite>, <a href="https://arxiv.org/abs/2504.11645">'
    "arXiv:2504.11645</a>"
)
HEADLINES = ("quadratic/markov", "quadratic/agents")
BIBTEX = """@article{{zhu2025fedhsa,
  title   = {{Achieving Tighter Finite-Time Rates for Heterogeneous Federated
             Stochastic Approximation under Markovian Sampling}},
  author  = {{Zhu, Feng and Heath, Jr., Robert W. and Mitra, Aritra}},
  journal = {{arXiv preprint arXiv:2504.11645}},
  year    = {{2025}},
  url     = {{https://arxiv.org/abs/2504.11645}}
}}

@software{{fedhsa,
  title   = {{fedhsa: federated stochastic approximation with Markovian data
             and heterogeneous agents}},
  author  = {{{{The fedhsa authors}}}},
  version = {{{version}}},
  license = {{MIT}}
}}"""


def render(report: Report) -> str:
    """Returns the page as text; figures are embedded, and links to their files are relative to the page's folder."""
    sections, claims = [*report.entries], report.claims
    groups = _grouped(sections)
    style, script = _beside("page.css"), _beside("page.js")
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            f"<title>{TITLE}: figures and claims</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n",
            '<div class="opening">\n',
            _header(report, claims),
            _verdicts(claims),
            _headlines(sections),
            "</div>\n",
            _contents(groups),
            '<a class="to-contents" href="#contents">Contents</a>\n<div class="body">\n',
            *(family(name, group, row_ids(claims)) for name, group in groups.items()),
            claims_table(claims, sections),
            _statistics(claims),
            _provenance(report),
            f"</div>\n</main>\n<script>\n{script}</script>\n</body>\n</html>\n",
        ]
    )


def _beside(name: str) -> str:
    return importlib.resources.files("fedhsa.experiments.page").joinpath(name).read_text(encoding="utf-8")


def _grouped(sections: list[StoredStudy]) -> dict[str, list[StoredStudy]]:
    """Groups the sections by family, in the paper's order, with studies last."""
    groups = {name: [s for s in sections if group_of(s) == name] for name in (*FAMILIES.values(), STUDIES)}
    return {name: group for name, group in groups.items() if group}


def _header(report: Report, claims: list[Claim]) -> str:
    numbers = "the numbers of its text" if report.preset == "paper" else "the numbers of the authors' public scripts"
    return (
        f"<header>\n<h1>{TITLE}</h1>\n{_notices(report, claims)}"
        f'<p class="lead">Every experiment of {PAPER}, run again with many seeds, confidence intervals and the '
        f"predictions of theory beside the measurements, and its claims, with a few that follow from them, checked by "
        f"number. Settings are "
        f"{numbers}{_changed(report)}. Made with fedhsa {escape(str(report.versions.get('fedhsa', '')))}, "
        f"{day(report.finished)}.</p>\n"
        "</header>\n"
    )


def _changed(report: Report) -> str:
    listed = ", ".join(f"<code>{escape(setting)}</code>" for setting in report.changed)
    return f", changed to {listed} where an experiment has such a setting" if listed else ""


def _notices(report: Report, claims: list[Claim]) -> str:
    short = " The runs were too short, or had too few seeds, to tell."
    notices = []
    for verdict, kind, sign, one, many, why in (
        (FAIL, "bad", "✗", "claim fails", "claims fail", ""),
        (UNDECIDED, "open", "?", "claim is not decided", "claims are not decided", short),
    ):
        if found := [claim for claim in claims if claim.verdict == verdict]:
            which = "; ".join(f'<a href="#claim-{c.number}">{c.number}, {escape(c.title)}</a>' for c in found)
            told = f"{sign} {len(found)} {one if len(found) == 1 else many}:"
            notices.append(f'<p class="notice {kind}"><strong>{told}</strong> {which}.{why}</p>\n')
    if report.unfinished:
        which = ", ".join(f"<code>{escape(name)}</code>" for name in report.unfinished)
        notices.append(
            f'<p class="notice open"><strong>Not complete.</strong> Missing: {which}. What follows rests on the '
            "experiments that were finished; the same command continues where it stopped.</p>\n"
        )
    if report.quick:
        notices.append(
            '<p class="notice open"><strong>This is the quick version,</strong> with fewer figures, seeds, rounds and '
            "agents than the paper. <code>fedhsa reproduce</code> makes the full one.</p>\n"
        )
    return "".join(notices)


def _verdicts(claims: list[Claim]) -> str:
    rows = []
    for claim in claims:
        passed = sum(check.verdict == PASS for check in claim.checks)
        title = f'<a href="#claim-{claim.number}">{escape(claim.title)}</a>'
        checks = f"{passed} of {len(claim.checks)}" if claim.checks else "none"
        found = words(finding(claim, lambda value: typeset(float(f"{value:.3g}"))))
        rows.append((str(claim.number), heading(title), chip(claim.verdict), found, checks))
    header = ("No.", "Claim", "Verdict", "In one number", "Checks passed")
    caption = (
        "The ten claims of the paper" if len(claims) == len(CLAIMS) else "The claims of the paper and of the field"
    )
    return chapter("verdicts", "Verdicts", f"<p>{_summary(claims)}</p>\n{table(caption, header, rows, 'verdicts')}")


def _summary(claims: list[Claim]) -> str:
    checks = [check for claim in claims for check in claim.checks]
    good = sum(check.verdict == PASS for check in checks)
    count = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in (PASS, FAIL, UNDECIDED, None)}
    parts = [f"{count[PASS]} of the {len(claims)} claims pass"]
    parts += [f"{count[FAIL]} {'fails' if count[FAIL] == 1 else 'fail'}"] * bool(count[FAIL])
    parts += [f"{count[UNDECIDED]} {'is' if count[UNDECIDED] == 1 else 'are'} not decided"] * bool(count[UNDECIDED])
    parts += [f"{count[None]} {'was' if count[None] == 1 else 'were'} not checked"] * bool(count[None])
    return f"{', '.join(parts)}. Of {len(checks)} checks {good} pass."


def _headlines(sections: list[StoredStudy]) -> str:
    chosen = [s for name in HEADLINES for s in sections if s.experiment.name == name]
    chosen = chosen if len(chosen) == 2 else sections[:2]
    if not chosen:
        return ""
    figures = "".join(
        figure_of(
            s, f'<a href="#{escape(anchor(s))}">{words(s.experiment.title)}</a>. {words(" ".join(s.sentences[:1]))}'
        )
        for s in chosen
    )
    kind = "stacked" if any(map(is_broad, chosen)) else "pair"
    return chapter("pictures", "In two pictures", f'<div class="{kind}">\n{figures}</div>\n')


def _contents(groups: dict[str, list[StoredStudy]]) -> str:
    def link(to: str, text: str) -> str:
        return f'<a href="#{escape(to)}">{text}</a>'

    entries = []
    for name, group in groups.items():
        inner = items(link(anchor(s), words(s.experiment.title)) for s in group)
        entries.append(f"{link(slug(name), escape(name))}\n{inner}")
    entries += [
        link("claims", "The claims, check by check"),
        link("statistics", "How the intervals are made"),
        link("provenance", "Versions, machine, runtime"),
        link("cite", "How to cite"),
    ]
    return (
        '<nav aria-labelledby="contents">\n<h2 id="contents">Contents</h2>\n'
        f"{items([link('verdicts', 'Verdicts'), *entries])}</nav>\n"
    )


def _statistics(claims: list[Claim]) -> str:
    checks = [check for claim in claims for check in claim.checks]
    random = sum(check.interval is not None for check in checks)
    text = f"""\
<p>Every curve is the mean of independent runs, one per seed, and its band is the 95&nbsp;% interval of that mean at
each round. Errors are positive and skewed, so intervals are symmetric for the logarithm of the mean (delta method,
Student's quantile, a little wider for skewness) rather than for the mean itself. Curves without noise have one run
and no band.</p>
<p>A floor is the average of each run over its flat part, then the mean over seeds. Errors of successive rounds are
correlated, but seeds are independent: whatever correlation there is within a run shows in the spread between seeds,
from which the interval is made. Methods that are compared share their noise, and their ratio is taken with seeds
paired. Slopes are those of least squares through the logarithms of means, with the spread of all seeds carried
through.</p>
<p>Verdicts rest on {100 * LEVEL:g}&nbsp;% intervals. {_joint(random)} An interval must also be short enough to mean
something where a number is to be equal to another; the rule beside each check says how short. The other
{len(checks) - random} of the {len(checks)} checks are of numbers that need no interval, or have none.</p>
"""
    return chapter("statistics", "How the intervals are made", text)


def _joint(random: int) -> str:
    if not random:
        return ""
    least = f"{100 * max(0.0, 1 - random * (1 - LEVEL)):.1f}&nbsp;%"
    return (
        f"There are {random} of them here: if each has its nominal level, all contain the truth together with a chance "
        f"of at least {least}."
    )


def _provenance(report: Report) -> str:
    elsewhere = dict.fromkeys(entry.manifest.get("machine") for entry in report.entries)
    computed = sum(entry.manifest.get("seconds") or 0.0 for entry in report.entries)
    rows = [
        ("Command", f"<code>{escape(report.command)}</code>"),
        ("Settings", escape(report.preset) + (", quick" if report.quick else "")),
        ("Finished", escape(report.finished)),
        (
            "This command took",
            f"{duration(report.seconds)}, by the clock: what it computed, the figures and this page. Results that were "
            "there already took no time.",
        ),
        (
            "All experiments took",
            f"{duration(computed)}, added up, each when it was computed, now or earlier. Where several ran at a time, "
            "the clock showed less.",
        ),
        *((escape(name), escape(str(version))) for name, version in report.versions.items()),
        ("Machine", escape(report.machine)),
        *(("Also computed on", escape(str(other))) for other in elsewhere if other and other != report.machine),
    ]
    made = table("What made this page", ("What", "Which"), ((heading(n), v) for n, v in rows))
    cited = escape(BIBTEX.format(version=report.versions.get("fedhsa", "")))
    cite = f"<p>The paper, and this toolkit if its numbers were of use:</p>\n<pre>{cited}</pre>\n"
    return chapter("provenance", "Versions, machine, runtime", made) + chapter("cite", "How to cite", cite)
