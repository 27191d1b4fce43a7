"""Runs by messages between a server and agents that keep their data: in one process, on a cluster or between sites.

Server, sites and messages do not depend on the transport: only the modules `grpc`, `flower` and `ray` import those
packages. A site runs a `Node`, over gRPC or on Flower. `ray_executor` runs sweeps, comparisons and studies as tasks.
"""

from ..environments.gym import GymEpisodes, GymStream
from ..problems import Live
from ..sources import AbstractStream
from .federate import federate, in_memory
from .limits import Audit, Limits
from .measure import MeasuredAgent
from .memory import FAULTS, Faults, Killed, MemoryTransport
from .missing import Missing
from .node import Node
from .plan import AgentContext, Plan
from .privacy import Privacy
from .ray_tasks import RayExecutor, RemoteError, ray_executor
from .schema import Schema
from .secure import Secure
from .server import FederationError, Server
from .site import Site
from .store import BusyError, Store
from .task import Task
from .transport import AbstractTransport
from .wire import RejectedError

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
