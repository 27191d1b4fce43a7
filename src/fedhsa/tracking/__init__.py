"""Trackers: experiment-tracking tools that follow a run while it goes on. `simulate(..., tracker=...)` takes one."""

from .base import AbstractTracker as AbstractTracker
from .base import flat as flat
from .json_lines import JSONLines as JSONLines
from .mlflow import MLflow as MLflow
from .tensorboard import TensorBoard as TensorBoard
from .wandb import WandB as WandB

__all__ = ["AbstractTracker", "JSONLines", "MLflow", "TensorBoard", "WandB", "flat"]
