"""Runs in Weights & Biases, online or as files to be uploaded later."""

import json
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from .. import _files
from .._extras import need
from .._json import plain
from .base import AbstractTracker

EXIT_CODE = {"finished": 0, "failed": 1, "interrupted": 130}


class WandB(AbstractTracker):
    """Writes a run to Weights & Biases: settings as its configuration, recorded numbers against the round.

    Needs the extra `wandb`. Runs are written to files and uploaded later with `wandb sync`, unless `mode` or the
    environment variable `WANDB_MODE` is `"online"`. Neither code nor statistics of the machine are collected.

    **Arguments:**

    - `project`: the name of the project. Default: the environment variable `WANDB_PROJECT`, or else `fedhsa`.
    - `name`: the name of the run. Default: the name of the algorithm.
    - `folder`: the folder in which W&B makes its folder `wandb`. Default: the current folder.
    - `mode`: `"offline"` or `"online"`. Default: the environment variable `WANDB_MODE`, or else `"offline"`.

    Raises `ModuleNotFoundError` if W&B is not installed.

    !!! example
        >>> tracker = fedhsa.tracking.WandB("heterogeneity", name="ten agents")
        >>> result = fedhsa.simulate(problem, method, rounds=1000, tracker=tracker)  # doctest: +SKIP
    """

    artifacts = True

    def __init__(
        self,
        project: str | None = None,
        name: str | None = None,
        folder: str | os.PathLike = ".",
        mode: str | None = None,
    ):
        need("W&B", "wandb", "wandb")
        self.project = project or os.environ.get("WANDB_PROJECT") or "fedhsa"
        self.name, self.folder = name, pathlib.Path(folder)
        self.mode = mode or os.environ.get("WANDB_MODE") or "offline"
        if self.mode not in ("offline", "online", "disabled", "shared"):
            raise ValueError(f"`mode` must be 'offline' or 'online', got {self.mode!r}.")
        self._run: Any = None

    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> int:
        import wandb

        fingerprint = str(settings.get("fingerprint", ""))
        name = self.name or settings.get("algorithm", {}).get("name", "fedhsa")
        earlier = self._known().get(fingerprint) if after is not None else None
        self.folder.mkdir(parents=True, exist_ok=True)
        quiet: dict[str, Any] = {"silent": True, "console": "off", "save_code": False, "disable_git": True}
        quiet |= {"x_disable_stats": True, "x_disable_meta": True}
        self._run = wandb.init(
            project=self.project,
            name=name,
            dir=str(self.folder),
            mode=self.mode,  # pyright: ignore[reportArgumentType]
            config=plain(settings),
            id=earlier,
            resume=None if earlier is None else "allow",
            reinit="create_new",
            settings=wandb.Settings(**quiet),
        )
        self._run.define_metric("*", step_metric="round")
        if fingerprint:
            _files.write_text(self._file, json.dumps(self._known() | {fingerprint: self._run.id}) + "\n")
        return -1 if after is None or earlier is None else after

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({"round": step, **values})

    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        import wandb

        for path in files:
            if path.suffix == ".png":
                self._run.log({path.stem: wandb.Image(str(path))})
            else:  # inside the folder of the run a file needs no symbolic link
                copy = pathlib.Path(self._run.dir, path.name)
                shutil.copyfile(path, copy)
                self._run.save(str(copy), base_path=self._run.dir, policy="end")
        self._run.summary.update(plain({"status": status, **summary}))
        self._run.finish(exit_code=EXIT_CODE[status])
        self._run = None

    @property
    def _file(self) -> pathlib.Path:
        return self.folder / "wandb" / "fedhsa-runs.json"

    def _known(self) -> dict[str, str]:
        """The names that W&B gave to earlier runs, by fingerprint."""
        try:
            return dict(json.loads(self._file.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}
