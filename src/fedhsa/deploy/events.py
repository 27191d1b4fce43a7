"""Events of a run in words, one line each, for the terminal."""

from typing import Any

PREFIX = "fedhsa: "
"""How each line begins that a server on Flower prints for the user; all other lines are Flower's own."""


def sentence(event: dict[str, Any]) -> str | None:
    """What happened, in one line; None for events that only the log needs."""
    match event["event"]:
        case "started":
            return f"Run {event['run']}: {event['agents']} agents, {event['rounds']} rounds, {_value(event)}"
        case "resumed":
            return f"Run {event['run']} continues after round {event['round']} of {event['rounds']}, {_value(event)}"
        case "round":
            return _round(event)
        case "rejected":
            return f"RejectedError a message ({event['code']}): {event['why']}"
        case "missing":
            why = "; ".join(sorted(set(event["why"].values())))
            return f"No answer from {_agents(event['agents'])}" + (f": {why}" if why else "")
        case "diverged":
            return f"Diverged in round {event['round']}: the step is too large for this problem."
        case "interrupted":
            return f"Interrupted after round {event['round']}."
        case "failed":
            return str(event["why"])
        case "finished":
            return f"Finished after {event['round']} rounds."
    return None


def _round(event: dict[str, Any]) -> str:
    words = [f"Round {event['round']:>{len(str(event['rounds']))}}/{event['rounds']}: {_value(event)}"]
    words.append(f"{event['agents']} of {event['agents'] + len(event['absent'])} agents")
    words.append(f"{event['seconds']:.3g} s")
    words.append(f"{_bytes(event['bytes_down'])} down, {_bytes(event['bytes_up'])} up")
    if event["attempts"] > 1:
        words.append(f"{event['attempts']} attempts")
    return ", ".join(words)


def _value(event: dict[str, Any]) -> str:
    for name, words in (("error", "error"), ("operator_norm", "operator norm")):
        if isinstance(event.get(name), int | float):
            return f"{words} {event[name]:.3e}"
    return "error not known" if "operator_norm" not in event else "infinite"


def _agents(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")
    return f"agent {shown}" if len(numbers) == 1 else f"agents {shown}"


def _bytes(count: int) -> str:
    size, units = float(count), ["B", "kB", "MB", "GB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"
