"""Runs as TensorBoard's event files."""

import json
import os
import pathlib
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .._extras import need
from .._json import plain
from .base import AbstractTracker


class TensorBoard(AbstractTracker):
    """Writes a run as event files, which `tensorboard --logdir FOLDER` shows while they grow.

    The recorded numbers are scalars, the settings and the final summary are texts, and figures are images. TensorBoard
    stores numbers with seven digits. Needs the extra `tensorboard`; TensorFlow is not needed.

    **Arguments:**

    - `folder`: the folder of this run. Runs in neighbouring folders are drawn together. A later run in the same folder
      hides the earlier one.

    Raises `ModuleNotFoundError` if TensorBoard is not installed.

    !!! example
        >>> problem = fedhsa.problems.quadratic.random(num_agents=4, dim=3)
        >>> tracker = fedhsa.tracking.TensorBoard("logs/FedHSA")
        >>> _ = fedhsa.simulate(problem, fedhsa.FedHSA(0.02, local_steps=5), rounds=10, tracker=tracker)
    """

    def __init__(self, folder: str | os.PathLike):
        need("TensorBoard", "tensorboard", "tensorboard")
        self.folder = pathlib.Path(folder)
        self._writer: Any = None
        self._step = 0

    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> int:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        resumed = after is not None and any(self.folder.glob("events.out.tfevents.*"))
        last = -1 if after is None or not resumed else after
        self._writer = EventFileWriter(str(self.folder))
        # A start hides everything from its step on that earlier files in the folder have.
        self._add(last + 1, session_log=_events().SessionLog(status=_events().SessionLog.START))
        if last < 0:
            self._text("settings", settings, 0)
        self._step = max(last, 0)
        self._writer.flush()
        return last

    def log(self, values: Mapping[str, float], step: int) -> None:
        Summary = _summaries().Summary
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(step, summary=Summary(value=scalars))
        self._step = step

    def flush(self) -> None:
        self._writer.flush()

    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        Summary = _summaries().Summary
        self._text("summary", {"status": status, **summary}, self._step)
        for path in files:
            if path.suffix == ".png":
                data = path.read_bytes()
                width, height = struct.unpack(">II", data[16:24])
                image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=data)
                self._add(self._step, summary=Summary(value=[Summary.Value(tag=path.stem, image=image)]))
        self._writer.close()
        self._writer = None

    def _text(self, tag: str, values: Mapping[str, Any], step: int) -> None:
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        Summary = _summaries().Summary
        text = json.dumps(plain(values), indent=2, default=str)
        shown = "".join(f"    {line}\n" for line in text.splitlines())  # indented text is shown as it is
        metadata = create_summary_metadata(display_name=tag, description="")
        value = Summary.Value(tag=tag, tensor=make_tensor_proto(shown.encode()), metadata=metadata)
        self._add(step, summary=Summary(value=[value]))

    def _add(self, step: int, **content: Any) -> None:
        self._writer.add_event(_events().Event(wall_time=time.time(), step=step, **content))


def _events() -> Any:
    """TensorBoard's messages for events; type checkers cannot see into them."""
    from tensorboard.compat.proto import event_pb2

    return event_pb2


def _summaries() -> Any:
    """TensorBoard's messages for scalars, texts and images."""
    from tensorboard.compat.proto import summary_pb2

    return summary_pb2
