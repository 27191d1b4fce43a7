"""`fedhsa deploy status`: shows the progress of a run from its log, or a summary of the messages that left a node."""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

from rich.console import Console

from .._numbers import plain
from ..deploy import Store
from ..deploy.journal import FILE, read
from ..deploy.limits import AUDIT
from .errors import FailedRunError
from .screen import PlainTable

RUNS = pathlib.Path("runs", "deploy")


def show(folder: pathlib.Path | None, as_json: bool, console: Console) -> int:
    """Prints the progress of the run in `folder`, by default the latest run, or a summary of a node's audit log."""
    of_node = folder is not None and (folder / AUDIT).is_file()
    found = summarise_node(folder) if folder is not None and of_node else summarise(folder or _latest())
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    apart = "runs" if of_node else "measured"
    table = PlainTable()
    for name, value in found.items():
        if name != apart:
            table.add_row(name.replace("_", " "), _words(value))
    console.print(table)
    if details := found[apart]:
        what = "Sent by this node:" if of_node else f"Measured by the sites after round {details['round']}:"
        console.print(f"\n{what}")
        console.print(_runs(details) if of_node else _measured(details))
    return 0


def _measured(measured: dict[str, Any]) -> PlainTable:
    metrics = measured["metrics"]
    table = PlainTable("agent", "weight", *metrics)
    for agent, weight in enumerate(measured["weights"]):
        table.add_row(str(agent), plain(weight, 4), *(plain(found["agents"][agent], 4) for found in metrics.values()))
    table.add_row("average", "", *(plain(found["mean"], 4) for found in metrics.values()))
    return table


def _runs(runs: dict[str, dict[str, Any]]) -> PlainTable:
    table = PlainTable(*next(iter(runs.values())))
    for run in runs.values():
        table.add_row(*map(_words, run.values()))
    return table


def summarise_node(folder: pathlib.Path) -> dict[str, Any]:
    """Summarises the messages that a node has sent and refused, from its audit log, as plain values."""
    entries = list(read(folder, AUDIT))
    sent = [entry for entry in entries if entry["event"] == "sent"]
    refused = [entry for entry in entries if entry["event"] == "refused"]
    runs: dict[str, dict[str, Any]] = {}
    with _complete(folder / AUDIT, "node"):
        for entry in sent:
            run = {"run": entry["run"], "rounds": 0, "replies": 0, "bytes": 0, "last_answer": ""}
            run = runs.setdefault(entry["run"], run)
            run |= {"rounds": max(run["rounds"], entry["block"]), "last_answer": entry["time"][:19]}
            run |= {"replies": run["replies"] + (entry["kind"] == "reply"), "bytes": run["bytes"] + entry["bytes"]}
        codes = [entry["code"] for entry in refused]
        return {
            "folder": str(folder),
            "agent": entries[-1]["agent"] if entries else None,
            "state": "running" if Store(folder / "node").busy else "stopped",
            "rounds_answered": sum(run["rounds"] for run in runs.values()),
            "bytes_sent": sum(run["bytes"] for run in runs.values()),
            "epsilon_spent": next((e["epsilon"] for e in reversed(sent) if e["epsilon"] is not None), None),
            "refused": ", ".join(f"{codes.count(code)} x {code}" for code in sorted(set(codes))) or None,
            "last_refusal": refused[-1]["why"] if refused else None,
            "last_answer": sent[-1]["time"] if sent else None,
            "runs": runs,
        }


@contextlib.contextmanager
def _complete(log: pathlib.Path, writer: str) -> Iterator[None]:
    """Turns errors of reading an entry into one that says which log is damaged."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise FailedRunError(
            f"The log {str(log)!r} is damaged: an entry lacks a field that every {writer} writes ({error})."
        ) from error


def summarise(folder: pathlib.Path) -> dict[str, Any]:
    """Summarises the progress of a run as plain values."""
    try:
        events = list(read(folder))
    except FileNotFoundError:
        raise FailedRunError(f"There is no run in {str(folder)!r}: it has no {FILE}.") from None
    with _complete(folder / FILE, "run"):
        return _summary(folder, events)


def _summary(folder: pathlib.Path, events: list[dict[str, Any]]) -> dict[str, Any]:
    begun = [event for event in events if event["event"] in ("started", "resumed")]
    rounds = [event for event in events if event["event"] == "round"]
    if not begun:
        raise FailedRunError(f"The log {str(folder / FILE)!r} does not record the start of a run; it may be damaged.")
    last, latest = rounds[-1] if rounds else begun[-1], events[-1]
    running = Store(folder / "server.state").busy
    ended = latest["event"] if latest["event"] in ("finished", "failed", "interrupted", "diverged") else "killed"
    recent = [event["seconds"] for event in rounds[-5:]]
    left = begun[-1]["rounds"] - last["round"]
    return {
        "folder": str(folder),
        "run": begun[-1]["run"],
        "state": "running" if running else ended,
        "why": latest.get("why") if not running and ended != "killed" else None,
        "transport": begun[-1]["transport"],
        "missing_agents": begun[-1]["missing"],
        "round": last["round"],
        "rounds": begun[-1]["rounds"],
        "error": last.get("error"),
        "operator_norm": last.get("operator_norm"),
        "movement": last.get("movement"),
        "measured": next((found for event in reversed(events) if (found := _found(event))), None),
        "agents": last["agents"] if rounds else 0,
        "absent": last.get("absent", []),
        "seconds_per_round": sum(recent) / len(recent) if recent else None,
        "seconds_left": left * sum(recent) / len(recent) if running and recent else None,
        "bytes_down": sum(event["bytes_down"] for event in rounds),
        "bytes_up": sum(event["bytes_up"] for event in rounds),
        "resumed": sum(event["event"] == "resumed" for event in events),
        "rejected_messages": sum(event["event"] == "rejected" for event in events),
        "started": begun[0]["time"],
        "last_event": latest["time"],
    }


def _found(event: dict[str, Any]) -> dict[str, Any] | None:
    """The sites' measurements in this event, if it has any."""
    found = event if event["event"] == "measured" else event.get("measured")
    return None if found is None else {name: found[name] for name in ("round", "metrics", "weights")}


def _latest() -> pathlib.Path:
    logs = sorted(RUNS.glob(f"*/{FILE}"), key=lambda path: path.stat().st_mtime)
    if not logs:
        raise FailedRunError(f"There is no run in {str(RUNS)!r}. Give the run's output folder.")
    return logs[-1].parent


def _words(value: Any) -> str:
    if value is None or value == []:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
