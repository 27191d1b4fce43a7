"""`fedhsa deploy superlink` and `fedhsa deploy node`: commands that run until they are stopped."""

import contextlib
import functools
import logging
import sys
import threading

from rich.console import Console

from .. import deploy
from .._extras import need
from ..deploy import prometheus
from ..deploy.address import split_address
from .deploy_settings import NodeSettings, SuperlinkSettings
from .errors import FailedRunError
from .output import on_signals
from .parsing import parse_flags


def superlink(args: list[str], console: Console) -> int:
    """Runs a SuperLink and its gate until they are stopped."""
    settings = parse_flags(SuperlinkSettings, args, SuperlinkSettings())
    host, port = split_address("listen", settings.listen, free=True)
    need("Flower", "flwr", "flower")
    from ..deploy.flower.superlink import run_superlink

    logging.getLogger("fedhsa.gate").addHandler(_ToConsole(console))
    console.print("Starting a SuperLink ...")
    with contextlib.suppress(KeyboardInterrupt):
        try:
            run_superlink(
                settings.keys,
                host,
                port,
                inner=settings.inner_port or None,
                logs=settings.logs,
                tell=functools.partial(console.print, soft_wrap=True),
            )
        except RuntimeError as error:
            raise FailedRunError(str(error)) from error
    console.print("The gate and the SuperLink are stopped.")
    return 0


def node(args: list[str], console: Console) -> int:
    """Runs a node until it is stopped."""
    settings = parse_flags(NodeSettings, args, NodeSettings())
    settings.check()
    from ..deploy.signing import Identity

    number = Identity.load(settings.keys).number
    if number is None:
        raise FailedRunError(f"`keys` must be a node's folder, got {str(settings.keys)!r}, the server's.")
    plan = None if settings.plan is None else deploy.Plan.from_json(settings.plan.read_text(encoding="utf-8"))

    say = functools.partial(console.print, soft_wrap=True)
    with contextlib.ExitStack() as stack:
        watch = None
        if settings.metrics:
            exporter = prometheus.NodeExporter(number)
            watch = stack.enter_context(prometheus.exported(prometheus.Target.parse(settings.metrics), exporter))
        found = deploy.Node(
            settings.keys if settings.state is None else settings.state,
            number,
            agent=settings.agent,
            config=settings.config(),
            allow=settings.allow,
            plan=plan,
            sync=settings.sync,
            say=say,
            watch=watch,
        )
        stack.enter_context(found)
        ended = stack.enter_context(_until_stopped())
        if settings.server is not None:
            split_address("server", settings.server)
            need("gRPC", "grpc", "grpc")
            from ..deploy.grpc import serve

            serve(found, settings.server, settings.keys, say=say, ended=ended)
        else:
            address = str(settings.superlink)
            split_address("superlink", address)
            need("Flower", "flwr", "flower")
            from ..deploy.flower import fleet
            from ..deploy.signing import signed

            answer = signed(found.answer, settings.keys)
            fleet.serve(fleet.Fleet(address, settings.keys, found.folder), answer, tell=say, ended=ended)
    console.print("The node is stopped.")
    return 0


@contextlib.contextmanager
def _until_stopped():
    """Yields an event that Ctrl-C and SIGTERM set, so that pending work is finished; a second signal exits."""
    ended = threading.Event()

    def stop(number: int, frame: object) -> None:
        if ended.is_set():
            sys.exit(128 + number)
        ended.set()

    with on_signals(stop):
        yield ended


class _ToConsole(logging.Handler):
    def __init__(self, console: Console):
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(f"The gate {record.getMessage()}", soft_wrap=True)
