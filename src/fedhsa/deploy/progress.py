"""How far a run is: what the next round needs, and the records of the rounds before it."""

from typing import NamedTuple

import numpy as np
from jaxtyping import PyTree


class Record(NamedTuple):
    """The record of one round; entry 0 is before the first."""

    error: float
    operator_norm: float
    """The norm of the averaged operators at the parameter with which the round began, one observation of each agent;
    NaN for methods whose agents do not send them."""
    agents: int
    seconds: float
    bytes_down: int
    bytes_up: int
    attempts: int
    movement: float = float("nan")
    """How far the parameter moved in the round."""


class Progress(NamedTuple):
    """All that a checkpoint holds, so that a resumed run gives the same numbers."""

    round: int
    server: PyTree
    counted: np.ndarray
    """Per site, the last round that its replies were part of, or -1."""
    records: list[Record]
    failed_round: int


class RecordTable:
    """Records as one array, for a checkpoint after every round: only what is new is converted."""

    def __init__(self):
        self._rows, self._known = np.zeros((0, len(Record._fields))), 0

    def __call__(self, records: list[Record]) -> np.ndarray:
        """The records of all rounds, which are those of the last call and perhaps more."""
        if len(records) > len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros((len(records), len(Record._fields)))])
        for number in range(min(self._known, len(records)), len(records)):
            self._rows[number] = records[number]
        self._known = len(records)
        return self._rows[: len(records)]

    @staticmethod
    def read(rows: np.ndarray) -> list[Record]:
        """The records of such an array."""
        whole = ("agents", "bytes_down", "bytes_up", "attempts")
        records = [Record(*row) for row in rows.tolist()]  # what an earlier version wrote has no movement
        return [record._replace(**{name: int(getattr(record, name)) for name in whole}) for record in records]
