"""The outcome of a comparison as a table: each method's score, its score relative to the best, and its cost."""

from collections.abc import Iterator, Mapping

from .._numbers import traffic
from .._table import FIXED, Table
from ..engine.result import SIGNED
from ..statistics import Estimate
from .contest import Contest, Entry
from .ranking import Place, Ranking, least_seeds

CAPTION = (
    "Intervals: 95 %. Same as: ranks that do not differ significantly, at 5 % for all pairs together (sign flips, "
    "paired by seed, with Holm's correction)."
)
LARGE = 1e6
"""Ratios to the best score above this number are shown only as "over" it."""


def of_contest(found: Contest, labels: Mapping[str, str] | None = None, caption: str = CAPTION) -> Table:
    """Returns a table with one row per method, the best first.

    **Arguments:**

    - `found`: the comparison.
    - `labels`: other names to show for methods, by their names.
    - `caption`: the sentence below the table.
    """
    terms, labels = found.terms, labels or {}
    target = None if terms is None else terms.target
    measured = found.quantity.replace("_", " ")
    score = measured if terms is None or target is None else f"{terms.objective} to {target:g}"
    signed = target is None and found.quantity in SIGNED
    ranks = {place.name: str(place.rank) for place in found.ranking.places}
    rows = []
    for place in found.ranking.places:
        entry = found.entries[place.name]
        rows.append(
            (
                ranks[place.name],
                f"{labels.get(place.name, place.name)}, {_step(entry)}",
                _score(place, entry, target),
                _against_best(place, found.ranking),
                f"{entry.exchanges[-1]:,.0f}",
                traffic(float(entry.bytes[-1])).replace(" ", FIXED),
                ", ".join(ranks[name] for name in place.ties) or "-",
            )
        )
    relative = "below the best" if signed else "times the best"
    heads = ("rank", "method", f"{score} [95{FIXED}%{FIXED}interval]", relative, "exchanges", "bytes", "same as")
    return Table(heads, rows, right=(0, 4, 5), caption=" ".join([caption, *_too_few(found)]), apart=1)


def _too_few(found: Contest) -> Iterator[str]:
    """Yields the warning that no difference could have been found, if there were too few seeds."""
    seeds, pairs = len(next(iter(found.entries.values())).score), len(found.ranking.pairs)
    if pairs and seeds < (least := least_seeds(pairs)):
        yield f"With {seeds} seeds no difference can be significant: use at least {least} for so many methods."


def _step(entry: Entry) -> str:
    return "step as given" if entry.tuning is None else f"step {entry.tuning.best.step:.3g}"


def _score(place: Place, entry: Entry, target: float | None) -> str:
    seeds = len(entry.score)
    if place.failed and target is None:
        return f"infinite: {'every seed' if place.failed == seeds else f'{place.failed} of {seeds} seeds'} diverged"
    if place.failed:
        return f"{'no seed' if place.failed == seeds else f'{seeds - place.failed} of {seeds} seeds'} reached it"
    return estimate(place.score, ".2e" if target is None and entry.quantity not in SIGNED else ",.4g")


def _against_best(place: Place, ranking: Ranking) -> str:
    best = ranking.places[0].name
    pair = next((pair for pair in ranking.pairs if (pair.better, pair.worse) == (best, place.name)), None)
    if pair is None:
        return "-"
    if pair.difference is not None:
        return estimate(pair.difference, ".3g")
    return f"over {LARGE:g}" if pair.ratio.low > LARGE else estimate(pair.ratio, ".3g")


def estimate(found: Estimate, form: str) -> str:
    """Formats a value with its interval, which is never broken over two lines."""
    return f"{found.value:{form}} [{found.low:{form}},{FIXED}{found.high:{form}}]"
