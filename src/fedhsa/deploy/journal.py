"""The log of a run: events as JSON lines, which can be read afterwards and described in sentences."""

import contextlib
import datetime
import json
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from .. import _files, _numbers
from .._json import plain

FILE = "log.jsonl"
PREFIX = "fedhsa: "
"""The beginning of each line that a server on Flower prints for the user; all other lines are Flower's."""
SILENCE = 60.0
"""Seconds after which a round is reported although it does not complete a tenth of the run."""


class Journal:
    """Writes events to a file, and passes them to a function.

    **Arguments:**

    - `folder`: the folder of `log.jsonl`, or None to write no log.
    - `watch`: a function that is called with every event, a dictionary with `event` and `time`.
    - `name`: another name for the file.
    - `private`: whether only the owner may read the file.
    """

    def __init__(
        self,
        folder: pathlib.Path | None = None,
        watch: Callable[[dict[str, Any]], None] | None = None,
        name: str = FILE,
        private: bool = False,
    ):
        self.path = None if folder is None else folder / name
        self.watch, self._mode = watch, 0o600 if private else 0o666

    def __call__(self, event: str, **facts: Any) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        entry = {"time": now, "event": event, **plain(facts)}
        if self.path is not None:
            _files.append_line(self.path, json.dumps(entry, allow_nan=False).encode(), self._mode)
        if self.watch is not None:
            self.watch(entry)


def read(folder: pathlib.Path, name: str = FILE) -> Iterator[dict[str, Any]]:
    """The events of a run; incomplete lines, which a killed process may leave, are skipped."""
    with open(folder / name, "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, RecursionError):
                event = json.loads(line)
                if isinstance(event, dict) and isinstance(event.get("event"), str):
                    yield event


class Teller:
    """Reports a run in lines to `say`: progress ten times in all or once a minute, and every unusual event once."""

    def __init__(self, say: Callable[[str], object]):
        self._say, self._said, self._last = say, set[str](), time.monotonic()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        silent = time.monotonic() - self._last > SILENCE
        if kind == "round" and not silent and not is_tenth(event["round"], event["rounds"]):
            return
        words = sentence(event)
        if words is None:
            return
        if kind in ("rejected", "missing"):
            said = sentence({**event, "round": 0}) or ""  # an equal event of another round is not reported again
            if said in self._said:
                return
            self._said.add(said)
        self._say(words)
        self._last = time.monotonic()


def is_tenth(round: int, rounds: int) -> bool:
    """Whether this round completes a tenth of the run."""
    return 10 * round // rounds > 10 * (round - 1) // rounds


def sentence(event: dict[str, Any]) -> str | None:
    """The event in one line; None for events that only the log needs, and for errors, which are reported elsewhere."""
    match event["event"]:
        case "started":
            return _listed(f"Run {event['run']}: {event['agents']} agents, {event['rounds']} rounds", _value(event))
        case "resumed":
            run = f"Run {event['run']} continues after round {event['round']} of {event['rounds']}"
            return _listed(run, _value(event))
        case "round":
            return _round(event)
        case "measured":
            return f"{_agents_found(event)}."
        case "withheld":
            whose, s = _agents(event["agents"]).capitalize(), "s" * (len(event["agents"]) == 1)
            return (
                f"{whose} measure{s} what the parameter is worth, and keep{s} it private, since noise and masks are "
                "for replies and would not cover it; `--release-metrics` sends it all the same."
            )
        case "rejected" if event["code"] in ("diverged", "beyond"):  # a later event names the cause
            return None
        case "rejected":
            return f"Rejected a message ({event['code']}): {event['why']}"
        case "missing":
            why = "; ".join(sorted(set(event["why"].values())))
            whose = f"{_agents(event['agents'])} in round {event['round']}"
            return f"No usable answer from {whose}: {why}" if why else f"No answer from {whose}"
        case "given up":
            return (
                f"Round {event['round']} is given up because of {_agents(event['agents'])}: with secure aggregation no "
                "round goes on without those with whom it began."
            )
        case "diverged":
            return f"Diverged in round {event['round']}: the step is too large for this problem."
        case "interrupted":
            return f"Interrupted after round {event['round']}."
        case "finished":
            return f"Finished after {event['round']} rounds."
    return None


def measured_words(measured: dict[str, Any]) -> str:
    """The average of the main measurement, with its references in brackets: `rmse 1.68 (naive 1.8, alone 1.5)`."""
    metrics = {name: found["mean"] for name, found in measured["metrics"].items()}
    first, *others = metrics
    beside = [f"{name.removeprefix(f'{first}_')} {_numbers.plain(metrics[name], 4)}" for name in others]
    return f"{first} {_numbers.plain(metrics[first], 4)}" + (f" ({', '.join(beside)})" if beside else "")


def _round(event: dict[str, Any]) -> str:
    words = [f"Round {event['round']:>{len(str(event['rounds']))}}/{event['rounds']}"]
    if value := _value(event):
        words = [f"{words[0]}: {value}"]
    words.append(f"{event['agents']} of {event['agents'] + len(event['absent'])} agents")
    words.append(f"{event['seconds']:.3g} s")
    words.append(f"{_numbers.traffic(event['bytes_down'])} down, {_numbers.traffic(event['bytes_up'])} up")
    if event["attempts"] > 1:
        words.append(f"{event['attempts']} attempts")
    return ", ".join(words)


def _agents_found(event: dict[str, Any]) -> str:
    first = next(iter(event["metrics"]))
    each = event["metrics"][first]["agents"]
    shown = ", ".join(f"{_numbers.plain(value, 4)} at agent {i}" for i, value in list(enumerate(each))[:10])
    more = ", ..." if len(each) > 10 else ""
    return f"Measured after round {event['round']}: {measured_words(event)}; {shown}{more}"


def _value(event: dict[str, Any]) -> str:
    """The main measure of a run: the error, the sites' measurements, the operator norm or the movement, if known."""
    if isinstance(event.get("error"), int | float):
        return f"error {event['error']:.3e}"
    if measured := event.get("measured"):
        return f"{measured_words(measured)} after round {measured['round']}"
    for name, words in (("operator_norm", "operator norm"), ("movement", "the parameter moved by")):
        if isinstance(event.get(name), int | float):
            return f"{words} {event[name]:.3e}"
    return "infinite" if event.get("movement") == "infinity" else ""


def _listed(*words: str) -> str:
    return ", ".join(filter(None, words))


def _agents(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"agent {shown}" if len(numbers) == 1 else f"agents {shown}"
