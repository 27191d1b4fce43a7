"""What a whole reproduction is: the experiments that were finished, and the verdict on each claim."""

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
from ..study.checks import FAIL
from ..study.claims import Claim, judge


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything the page shows."""

    entries: Sequence[StoredStudy]
    """In the order of the page."""
    command: str
    """What was typed."""
    quick: bool
    """Whether this is the short version, with fewer seeds, rounds and agents."""
    preset: str
    """`paper` or `scripts`: whose numbers."""
    changed: tuple[str, ...] = ()
    """Settings that are not the preset's, such as `rounds = 20`."""
    seconds: float = 0.0
    """How long it took; what was reused took none."""
    unfinished: tuple[str, ...] = ()
    """Names of experiments that were asked for and are missing."""
    finished: str = dataclasses.field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    versions: dict[str, str] = dataclasses.field(default_factory=versions)
    machine: str = dataclasses.field(default_factory=lambda: machine())

    @property
    def claims(self) -> list[Claim]:
        """The claims with their checks."""
        return judge(check for entry in self.entries for check in entry.checks)

    @property
    def failed(self) -> list[Claim]:
        """Those that fail."""
        return [claim for claim in self.claims if claim.verdict == FAIL]

    def write(self, out: pathlib.Path) -> None:
        """Writes `report.html` and `claims.json`."""
        from .render import render  # which is about reports

        checks = [check.to_dict() for claim in self.claims for check in claim.checks]
        write_json(out / "claims.json", checks)
        _files.write_text(out / "report.html", render(self))


def machine() -> str:
    """The processor and where JAX computes, in a few words."""
    devices = ", ".join(sorted({device.device_kind for device in jax.devices()}))
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, JAX on {devices}"
