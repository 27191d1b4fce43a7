"""The server's Flower app: runs all rounds of a plan and writes the files of the run."""

import json
import pathlib

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from ..journal import Teller
from ..missing import Missing
from ..outcome import carry_out
from ..plan import Plan
from ..server import hello, server_of
from .transport import FlowerTransport, print_for_user

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs all rounds of the plan and writes the files of the run."""
    config = context.run_config
    plan = Plan.from_json(str(config["plan"]))
    folder = pathlib.Path(str(config["out"])).expanduser().absolute()
    missing = Missing(str(config["missing"]), float(config["patience"]) or None, int(config["at-least"]))
    told = Plan.from_json(str(config["told"]))
    keys = pathlib.Path(str(config["keys"])).expanduser() if config["keys"] else None
    transport = FlowerTransport(grid, lambda: hello(plan.task, server.run_id, told), plan.num_agents, keys)
    is_program = config.get("events") == "json"
    watch = (lambda event: print_for_user(json.dumps(event))) if is_program else Teller(print_for_user)
    bound = float(config.get("reply-bound", 0)) or None
    server = server_of(plan, transport, missing=missing, folder=folder, watch=watch, reply_bound=bound)
    carry_out(plan, server, int(config["rounds"]), folder, bool(config["resume"]), str(config["command"]))
