"""Runs in an MLflow store: a server, or a SQLite file."""

import contextlib
import logging
import math
import os
import pathlib
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._extras import need
from .base import AbstractTracker, flat

FINGERPRINT = "fedhsa.fingerprint"
"""The tag by which a resumed run is found."""
BATCH = 1000
"""The largest number of metrics that MLflow takes in one request."""
PARAMS = 100
"""The largest number of parameters that MLflow takes in one request."""
LONGEST = 6000
"""The largest number of characters in the value of a parameter."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class MLflow(AbstractTracker):
    """Writes a run to MLflow: settings as parameters, recorded numbers as metrics, results and figures as artifacts.

    Needs the extra `mlflow`, which installs MLflow without its server. MLflow sends usage statistics to its authors
    unless `MLFLOW_DISABLE_TELEMETRY` is set; this class sets it to true where it has no value.

    **Arguments:**

    - `uri`: a tracking server, such as `"http://127.0.0.1:5000"`, or a database, such as `"sqlite:///mlflow.db"`.
      Default: the environment variable `MLFLOW_TRACKING_URI`, or else `mlflow.db` in the current folder.
    - `experiment`: the name of the experiment, which is created if necessary.
    - `name`: the name of the run. Default: the name of the algorithm.
    - `artifacts_folder`: the folder for the artifacts of a new experiment in a database. Default: `mlartifacts` in the
      current folder.

    Raises `ModuleNotFoundError` if MLflow is not installed.

    !!! example
        >>> tracker = fedhsa.tracking.MLflow("http://127.0.0.1:5000", experiment="heterogeneity")
        >>> result = fedhsa.simulate(problem, method, rounds=1000, tracker=tracker)  # doctest: +SKIP
    """

    artifacts = True

    def __init__(
        self,
        uri: str | None = None,
        experiment: str = "fedhsa",
        name: str | None = None,
        artifacts_folder: str | os.PathLike | None = None,
    ):
        need("MLflow", "mlflow", "mlflow")
        self.uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
        if self.uri.startswith("sqlite:"):
            need("SQLAlchemy, with which MLflow writes databases,", "sqlalchemy", "mlflow")
            need("Alembic, with which MLflow writes databases,", "alembic", "mlflow")
        self.experiment, self.name = experiment, name
        self.artifacts_folder = pathlib.Path("mlartifacts" if artifacts_folder is None else artifacts_folder)
        self._client: Any = None
        self._run = ""
        self._metrics: list[Any] = []

    def begin(self, settings: Mapping[str, Any], after: int | None = None) -> int:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with _quiet():
            from mlflow import MlflowClient
            from mlflow.entities import Param

            self._client, self._metrics = MlflowClient(self.uri), []
            experiment = self._experiment()
            fingerprint = str(settings.get("fingerprint", ""))
            earlier = self._earlier(experiment, fingerprint) if after is not None else None
            if earlier is not None:
                self._run = earlier
                self._client.update_run(earlier, status="RUNNING")
                return self._last()
            name = self.name or settings.get("algorithm", {}).get("name", "fedhsa")
            tags = {FINGERPRINT: fingerprint} if fingerprint else {}
            self._run = self._client.create_run(experiment, run_name=name, tags=tags).info.run_id
            params = [Param(_name(key), str(value)[:LONGEST]) for key, value in flat(settings).items()]
            for first in range(0, len(params), PARAMS):
                self._client.log_batch(self._run, params=params[first : first + PARAMS])
            return -1

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 1_000_000
        self._metrics += [Metric(_name(name), float(value), now, step) for name, value in values.items()]

    def flush(self) -> None:
        with _quiet():
            while self._metrics:
                self._client.log_batch(self._run, metrics=self._metrics[:BATCH])
                self._metrics = self._metrics[BATCH:]

    def end(self, status: str, summary: Mapping[str, Any], files: Sequence[pathlib.Path] = ()) -> None:
        self.flush()
        with _quiet():
            numbers = {
                f"summary.{name}": float(value)
                for name, value in flat(summary).items()
                if isinstance(value, int | float) and not math.isnan(value)
            }
            self.log(numbers, 0)
            self.flush()
            for path in files:
                self._client.log_artifact(self._run, str(path))
            self._client.set_terminated(self._run, STATUS[status])

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(self.experiment)
        if found is not None:
            return found.experiment_id
        where = self.artifacts_folder.absolute().as_uri() if "sqlite:" in self.uri else None
        return self._client.create_experiment(self.experiment, artifact_location=where)

    def _earlier(self, experiment: str, fingerprint: str) -> str | None:
        """The run with this fingerprint that was begun last."""
        wanted = f"tags.`{FINGERPRINT}` = '{fingerprint}'"
        order = ["attributes.start_time DESC"]
        found = self._client.search_runs([experiment], wanted, max_results=1, order_by=order) if fingerprint else []
        return found[0].info.run_id if found else None

    def _last(self) -> int:
        names = [name for name in self._client.get_run(self._run).data.metrics if not name.startswith("summary.")]
        steps = [metric.step for name in names[:1] for metric in self._client.get_metric_history(self._run, name)]
        return max(steps, default=-1)


def _name(name: str) -> str:
    """The name with the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("]", "")).strip("_") or "_"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what MLflow reports about its database, and the warnings of its own packages, from the user's screen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow  # noqa: F401 - it sets up its logging when it is imported

        loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
        levels = [logger.level for logger in loggers]
        try:
            for logger in loggers:
                logger.setLevel(logging.WARNING)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
