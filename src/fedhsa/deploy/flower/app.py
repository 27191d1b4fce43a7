"""The two halves of the Flower app that runs any plan: what a node does with a message, and what the server does."""

import functools
import pathlib
import re
from typing import Any

import jax
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from ..events import sentence
from ..missing import Missing
from ..outcome import carry_out
from ..plan import Plan
from ..server import Server, hello
from ..site import Site
from ..store import Store
from ..wire import Refused, unpack
from .transport import FlowerTransport, unwrap, wrap

PREFIX = "fedhsa: "
"""Begins every line of the server's that is for the user; the others are Flower's."""

client_app = ClientApp()
server_app = ServerApp()


@client_app.query("fedhsa")
def answer(message: Message, context: Context) -> Message:
    """What a node does: it makes its agent from the plan and its own settings, and lets it answer."""
    data = unwrap(message.content)
    settings = {name: context.run_config[name] for name in ("plan", "state", "data")}
    site = _site(_run_of(data), tuple(sorted({**settings, **context.node_config}.items())))
    return Message(wrap(site.answer(data)), reply_to=message)


@functools.cache  # of use where Flower keeps the process: its simulation engine does, a SuperNode does not
def _site(run: str, settings: tuple[tuple[str, Any], ...]) -> Site:
    config = dict(settings)
    plan, folder = Plan.from_json(config.pop("plan")), pathlib.Path(config.pop("state")).expanduser()
    number, nodes = int(config["partition-id"]), int(config["num-partitions"])
    if nodes != plan.num_agents:
        raise ValueError(f"`num-partitions` is {nodes} on this node, but the plan has {plan.num_agents} agents.")
    keep_compiled(folder / "compiled")
    return plan.site([number], Store(folder / run / f"{number}.state"), run, config)


def _run_of(data: bytes) -> str:
    """The run a message belongs to; it becomes the name of a folder, so nothing but letters and digits will do."""
    run = unpack(data).header.get("run")
    if not isinstance(run, str) or not re.fullmatch("[0-9a-zA-Z]{1,64}", run):
        raise Refused("foreign", "the message does not say which run it belongs to")
    return run


def keep_compiled(folder: pathlib.Path) -> None:
    """Keeps compiled programs on disk: every message has a new process, which would compile the same again."""
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """What the server does: all rounds of the plan, and the files of a run."""
    config = context.run_config
    plan = Plan.from_json(str(config["plan"]))
    folder = pathlib.Path(str(config["out"])).expanduser().absolute()
    sites = [[number] for number in range(plan.num_agents)]
    missing = Missing(str(config["missing"]), float(config["patience"]) or None, int(config["at-least"]))
    transport = FlowerTransport(grid, lambda: hello(plan.task, server.run_id), {i: i for i in range(len(sites))})
    server = Server(
        plan.task,
        transport,
        sites,
        missing=missing,
        folder=folder,
        theta_star=plan.theta_star,
        watch=say,
    )
    carry_out(plan, server, int(config["rounds"]), folder, bool(config["resume"]), str(config["command"]))


def say(event: dict[str, Any]) -> None:
    """Tells the user of an event, through the server's output, which Flower carries to whoever started the run."""
    if words := sentence(event):
        print(PREFIX + words, flush=True)
