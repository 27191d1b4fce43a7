"""A whole reproduction: the finished experiments, and the verdict on each claim."""

import dataclasses
import datetime
import os
import pathlib
import platform
from collections.abc import Sequence

import jax

from ... import _files
from ..._version import versions
from ..run.store import StoredStudy, write_json
from ..study.claims import Claim, judge


@dataclasses.dataclass(frozen=True)
class Report:
    """The content of the page."""

    entries: Sequence[StoredStudy]
    """The finished experiments, in the order of the page."""
    command: str
    """The command line."""
    quick: bool
    """Whether this is the short version, with fewer seeds, rounds and agents."""
    preset: str
    """The origin of the settings: `paper` or `scripts`."""
    changed: tuple[str, ...] = ()
    """Settings that differ from the preset, such as `rounds = 20`."""
    seconds: float = 0.0
    """The run time in seconds; reused outcomes count as 0."""
    unfinished: tuple[str, ...] = ()
    """Names of requested experiments that are missing."""
    finished: str = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    versions: dict[str, str] = dataclasses.field(default_factory=versions)
    machine: str = dataclasses.field(default_factory=lambda: machine())

    @property
    def claims(self) -> list[Claim]:
        return judge(check for entry in self.entries for check in entry.checks)

    def write(self, out: pathlib.Path) -> None:
        from .render import render  # here, since `render` imports this module

        checks = [check.to_dict() for claim in self.claims for check in claim.checks]
        write_json(out / "claims.json", checks)
        _files.write_text(out / "report.html", render(self))


def machine() -> str:
    """Returns a short description of the processor and of the device on which JAX computes."""
    devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, JAX on {devices}"
