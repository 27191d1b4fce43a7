"""Trackers: experiment-tracking tools that follow a run while it goes on. `simulate(..., tracker=...)` takes one."""

from .base import AbstractTracker, flat
from .json_lines import JSONLines
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .wandb import WandB

__all__ = ["AbstractTracker", "JSONLines", "MLflow", "TensorBoard", "WandB", "flat"]
