"""Runs by messages between a server and agents that keep their data: in one process, on a cluster or between sites.

Server, sites and messages do not depend on the transport: only the modules `grpc`, `flower` and `ray` import those
packages. A site runs a `Node`, over gRPC or on Flower. `ray_executor` runs sweeps, comparisons and studies as tasks.
"""

from ..environments.gym import GymEpisodes as GymEpisodes
from ..environments.gym import GymStream as GymStream
from ..problems import Live as Live
from ..sources import AbstractStream as AbstractStream
from .federate import federate as federate
from .federate import in_memory as in_memory
from .limits import Audit as Audit
from .limits import Limits as Limits
from .measure import MeasuredAgent as MeasuredAgent
from .memory import FAULTS as FAULTS
from .memory import Faults as Faults
from .memory import Killed as Killed
from .memory import MemoryTransport as MemoryTransport
from .missing import Missing as Missing
from .node import Node as Node
from .plan import AgentContext as AgentContext
from .plan import Plan as Plan
from .privacy import Privacy as Privacy
from .ray_tasks import RayExecutor as RayExecutor
from .ray_tasks import RemoteError as RemoteError
from .ray_tasks import ray_executor as ray_executor
from .schema import Schema as Schema
from .secure import Secure as Secure
from .server import FederationError as FederationError
from .server import Server as Server
from .site import Site as Site
from .store import BusyError as BusyError
from .store import Store as Store
from .task import Task as Task
from .transport import AbstractTransport as AbstractTransport
from .wire import RejectedError as RejectedError

__all__ = [
    "FAULTS",
    "AbstractStream",
    "AbstractTransport",
    "AgentContext",
    "Audit",
    "BusyError",
    "Faults",
    "FederationError",
    "GymEpisodes",
    "GymStream",
    "Killed",
    "Limits",
    "Live",
    "MeasuredAgent",
    "MemoryTransport",
    "Missing",
    "Node",
    "Plan",
    "Privacy",
    "RayExecutor",
    "RejectedError",
    "RemoteError",
    "Schema",
    "Secure",
    "Server",
    "Site",
    "Store",
    "Task",
    "federate",
    "in_memory",
    "ray_executor",
]
