"""A node, independent of its transport: one agent, whose code and data belong to this machine."""

import contextlib
import json
import os
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from .. import _check, _files, _own
from . import compiled
from .fit import MismatchError
from .limits import Audit
from .measure import VALUES
from .plan import Plan, load_agent
from .site import HELLO, Site, failure_reply, in_words, log_to
from .store import BusyError, Store, check_run_name
from .wire import RejectedError, peek, unpack, words

IN_MEMORY, ON_DISK = 4, 1000
"""The largest numbers of runs that a node keeps in memory, and whose state it keeps on disk."""
MOST_AGENTS, MOST_PARAMETERS = 2**20, 2**23
"""The largest federation, and the longest parameter, that a plan may request: more does not fit into a message."""
MOST_OBSERVATIONS = 2**20
"""The largest number of observations of a round, all of which a node has in memory."""
LONGEST, LONGEST_TEXT = 2**14, 500
"""The largest lengths of a plan as text, and of each text in it, which bound the time for parsing."""

TROUBLES = ("diverged", "exhausted", "failed", "limit", "lost", "unavailable")
"""Codes of refusals whose cause is on this machine."""


class Node:
    """One agent of the server's runs, built on this machine: `answer` takes a message and returns a message.

    The server's greeting contains the plan of a run: the algorithm, its settings and the number of agents. It contains
    no code. A node takes part in a plan that needs user-supplied code only if its owner has provided that code, with
    `agent` or `allow`. Files and functions are matched by their names, and those of this machine are used.

    **Arguments:**

    - `folder`: the folder for the node's runs, its log and its compiled programs. Only one process at a time may use
      it, inside `with node:`.
    - `number`: the agent's number, from 0.
    - `agent`: the function that builds the agent, `"file.py:function"` or `"module:function"`. Default: agents of the
      library's problems.
    - `config`: the settings for this function, such as `data`, and those of `Privacy`. They never leave the node.
    - `allow`: further code that a plan may name, such as `"mine.py:HalfHSA"` in its algorithm.
    - `plan`: the only plan in which the node takes part. Default: any plan for which the code is available.
    - `sync`: whether the state must survive a loss of power, and not only the end of the process. Then every answer
      waits for the disk, which takes milliseconds.
    - `say`: a function that is called with sentences for the node's owner.
    - `watch`: a function that is called with every entry of the audit log, and with `answered` after every message: the
      bytes in both directions, the seconds, and the measurements that were sent.

    !!! example
        >>> import tempfile
        >>> from fedhsa.deploy.server import hello
        >>> from fedhsa.deploy.wire import unpack
        >>> plan = fedhsa.deploy.Plan(num_agents=3, dim=2)
        >>> with Node(tempfile.mkdtemp(), number=1) as node:
        ...     said = unpack(node.answer(hello(plan.task, "run1", plan))).header
        >>> said["kind"], said["first"]
        ('present', 1)
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        number: int,
        *,
        agent: str | None = None,
        config: Mapping[str, Any] | None = None,
        allow: Sequence[str] = (),
        plan: Plan | None = None,
        sync: bool = True,
        say: Callable[[str], None] = lambda sentence: None,
        watch: Callable[[dict[str, Any]], None] | None = None,
    ):
        self.folder, self.number = pathlib.Path(folder).expanduser().absolute(), number
        self.agent, self.config, self.plan, self.say = agent, dict(config or {}), plan, say
        self.sync = sync
        _check.number("number", number, least=0)
        if agent is not None:
            load_agent(agent)  # raises if the function does not exist
        self._own = [_reference(text) for text in allow]
        self._sites: dict[str, Site] = {}  # by run; the run of the latest message is the last entry
        self._said = ""
        self._fresh = 0  # the number of further answers that may compile a program
        self.audit, self._watch = Audit(self.folder, self._hear), watch
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "Node":
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(Store(self.folder / "node").alone(wait=False))
            except BusyError:
                raise BusyError(
                    f"A node is already running in {str(self.folder)!r}. Stop that one first, or give this one a "
                    "folder of its own."
                ) from None
            stack.callback(log_to(self.folder / "site.log"))
            stack.callback(compiled.keep(self.folder / "compiled"))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def answer(self, data: bytes) -> bytes:
        """Returns the reply to a message, or a rejection with its reason; never raises. One message at a time."""
        began = time.perf_counter()
        reply = self._answer(data)
        if self._watch is not None:
            spent = {"seconds": time.perf_counter() - began, "bytes_down": len(data), "bytes_up": len(reply)}
            self._watch({"event": "answered", **spent, **_measured(reply)})
        return reply

    def _answer(self, data: bytes) -> bytes:
        try:
            header = peek(data)
            run = check_run_name(str(header.get("run")))  # the name of a folder
            reply = self._site(run, header, data).answer(data)
            if self._fresh:
                self._fresh -= 1
                compiled.trim()
            return reply
        except Exception as error:
            self._tell(f"Could not answer: {in_words(error)}")
            reply = failure_reply(data, self.number, error)
            said = unpack(reply).header
            about = {"run": said.get("run"), "code": said["code"], "why": said["reason"]}
            self.audit.refused(agent=self.number, bytes=len(reply), **about)
            return reply

    def _site(self, run: str, header: dict[str, Any], data: bytes) -> Site:
        greeted = header.get("kind") == HELLO
        if greeted:
            header = unpack(data, 0).header  # this checks the checksum
        site = self._sites.pop(run, None)
        if site is None:
            site = self._join(run, header)
        elif greeted and header.get("task") != site.task.digest:
            self._sites[run] = site
            raise RejectedError("foreign", "this run has another plan here: start a new run")
        while len(self._sites) >= IN_MEMORY:
            del self._sites[next(iter(self._sites))]
            jax.clear_caches()  # otherwise the programs of all runs would stay in memory
        self._sites[run] = site
        return site

    def _join(self, run: str, header: dict[str, Any]) -> Site:
        """The site of a run, from the server's plan or, after a restart of this process, from the saved plan."""
        home = self.folder / "runs" / run
        kept = home / "plan.json"
        if isinstance(header.get("plan"), str):
            text = header["plan"]
        elif kept.is_file():
            text = kept.read_text()
        else:
            raise RejectedError("unknown", "this node has not been greeted with the plan of this run")
        plan = self._accept(_read(text))
        if plan.task.digest != header.get("task"):
            raise MismatchError(
                "what this node makes of the plan differs from the server's: are the versions of fedhsa the same?"
            )
        if not kept.is_file() and sum(1 for _ in home.parent.glob("*/plan.json")) >= ON_DISK:
            raise MismatchError(f"this node keeps {ON_DISK} runs and takes part in no more until old ones are removed")
        site = plan.site([self.number], Store(home / f"{self.number}.state", self.sync), run, self.config, self.audit)
        if not kept.is_file():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _files.atomic(kept, private=True) as file:
                file.write(text.encode())
        self._fresh = 2 + 2 * len(plan.method.exchanges)
        masked = ", with replies under masks" if plan.secure_aggregation else ""
        self._tell(f"Taking part in run {run} as agent {self.number} of {plan.num_agents}: {plan.algorithm}{masked}.")
        return site

    def _accept(self, plan: Plan) -> Plan:
        """The plan with references to this machine's code; raises if the node's owner did not provide the code."""
        if self.plan is not None:
            asked, pinned = json.loads(plan.told().to_json()), json.loads(self.plan.told().to_json())
            if differ := [name for name in pinned if asked[name] != pinned[name]]:
                raise MismatchError(f"this node takes part in one plan alone, from which {', '.join(differ)} differ")
        if not self.number < plan.num_agents <= MOST_AGENTS:
            raise MismatchError(f"this node is agent {self.number}, the plan is for {plan.num_agents} agents")
        if (plan.dim or 0) > MOST_PARAMETERS:
            raise MismatchError(f"{plan.dim} parameters do not fit into a message: at most {MOST_PARAMETERS} do")
        if plan.agent is not None:
            plan = plan.replace(agent=self._own_agent(_reference(plan.agent).name))
        elif self.agent is not None:
            raise MismatchError(
                "this node builds an agent of its own, but the run is on a problem of the library: start the server "
                "with `--agent`, or this node without"
            )
        changed = {name: _own.replace(getattr(plan, name), self._own_code) for name in ("problem", "algorithm")}
        plan = plan.replace(**changed)
        if (length := plan.method.block_length) > MOST_OBSERVATIONS:
            raise MismatchError(
                f"{length} observations in a round are too many for a node: at most {MOST_OBSERVATIONS}"
            )
        return plan

    def _own_agent(self, name: str) -> str:
        if self.agent is None:
            raise MismatchError(
                f"the run's agents are built by `{name}`: start this node with `--agent FILE.py:{name}`"
            )
        if (own := _reference(self.agent).name) != name:
            raise MismatchError(f"the run's agents are built by `{name}`, this node's by `{own}`: use the same name")
        return self.agent

    def _own_code(self, found: _own.Reference) -> str:
        """This machine's code of the same name. For a file, only its name is compared; for a module, its full path."""
        for own in self._own:
            same = own.path.name == found.path.name if own.is_file and found.is_file else own.place == found.place
            if same and own.name == found.name:
                return f"{own.path}:{own.name}" if own.is_file else str(own)
        raise MismatchError(f"the plan names code, {found.title}, that this node was not given with `--allow`")

    def _hear(self, entry: dict[str, Any]) -> None:
        """Takes an entry of the audit log, and reports to the owner the failures of the agent itself."""
        if entry["event"] == "refused" and entry["code"] in TROUBLES and entry.get("round") is not None:
            self._tell(f"Could not answer in round {entry['round']}: {entry['why']}.")
        if self._watch is not None:
            self._watch(entry)

    def _tell(self, sentence: str) -> None:
        """Reports a sentence once, however often a server repeats its request."""
        if sentence != self._said:
            self._said = sentence
            self.say(words(sentence))


def _reference(text: str) -> _own.Reference:
    found = _own.reference(text)
    if found is None:
        raise ValueError(f"`allow` must be FILE.py:NAME or MODULE:NAME, like `mine.py:HalfHSA`, got {text!r}.")
    return found


def _measured(reply: bytes) -> dict[str, Any]:
    """The measurements of the one agent in a reply."""
    header, arrays = unpack(reply)
    if VALUES not in arrays:
        return {}
    return {"measured": dict(zip(header["measures"], arrays[VALUES][0, :-1].tolist(), strict=True))}


def _read(text: str) -> Plan:
    """Reads the plan from a text of an unknown sender."""
    try:
        values = json.loads(text) if len(text) <= LONGEST else None
        texts = [value for value in (values or {}).values() if isinstance(value, str)]
        if values is None or any(len(value) > LONGEST_TEXT for value in texts):
            raise MismatchError(f"the plan cannot be read: it has {len(text)} characters, or a text in it is too long")
        plan = Plan.from_json(text)
        plain = json.loads(plan.to_json()) == json.loads(text)
    except MismatchError:
        raise
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MismatchError(f"the plan cannot be read ({type(error).__name__})") from None
    kinds: dict[str, Any] = {"problem": str, "algorithm": str, "num_agents": int, "dim": int | None, "option": dict}
    if not plain or not all(isinstance(getattr(plan, name), kind) for name, kind in kinds.items()):
        raise MismatchError("the plan cannot be read: its values are not of the types that a plan has")
    return plan
