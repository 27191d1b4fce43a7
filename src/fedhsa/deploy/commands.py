"""What each person of a federation types, on which machine: the words of commands, and COMMANDS.txt."""

import shlex


def join(host: str, port: int) -> str:
    """A host and a port as commands take them.

    >>> join("2001:db8::7", 8000)
    '[2001:db8::7]:8000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server_words(keys: str, port: int, *further: str, flower: bool = False) -> list[str]:
    """The command that nodes connect to: the run itself with gRPC, a SuperLink behind its gate with Flower."""
    inner = ["--inner-port", str(inner_port(port))] if flower else []
    command = ["fedhsa", "deploy", "superlink" if flower else "grpc"]
    return [*command, "--listen", f"0.0.0.0:{port}", *inner, "--keys", keys, *further]


def run_words(keys: str, port: int, *further: str) -> list[str]:
    """The command that runs something on Flower, on the server's machine."""
    return ["fedhsa", "deploy", "flower", "--superlink", f"127.0.0.1:{inner_port(port)}", "--keys", keys, *further]


def inner_port(port: int) -> int:
    """The port of the SuperLink behind a gate at this port."""
    return port + 1 if port < 65535 else port - 1


def node_words(keys: str, host: str, port: int, *further: str, flower: bool = False) -> list[str]:
    """The command of a node."""
    where = ["--superlink" if flower else "--server", join(host, port)]
    return ["fedhsa", "deploy", "node", *where, "--keys", keys, *further]


def all_commands(nodes: int, host: str, port: int) -> str:
    """What each person types with the keys of `make_keys`; without nodes, those make their own."""
    sites = [node_commands(i, host, port) for i in range(nodes)] or [node_commands(None, host, port)]
    return "\n\n".join([_copy(nodes), server_commands(nodes, host, port), *sites])


def _copy(nodes: int) -> str:
    packages = """\
Every machine needs the same version of fedhsa: pip install '.[grpc]' in a clone, elsewhere pip install 'fedhsa[grpc]'
(with Flower: [flower] instead). `fedhsa deploy doctor FOLDER` says what else is missing."""
    if nodes:
        return f"""\
Copy the folder `server` to the server, and each folder `node-...` to its node, over a channel you trust. Nobody else
may have `server.key` or a `key`. The folder `authority` is copied nowhere.

{packages}"""
    return f"""\
Copy the folder `server` to the server over a channel you trust. Nobody else may have `server.key`. The folder
`authority` is copied nowhere.

Each site makes its own private key, which never leaves its machine:

    site   fedhsa deploy keys request my-node
           sends you my-node/request.pem, and reads you its fingerprint over the telephone
    you    fedhsa deploy keys sign . request.pem --number 0 --fingerprint ...
           send server/nodes/node-0.crt back, and copy it to the server's folder `nodes`
    site   fedhsa deploy keys accept my-node node-0.crt

{packages}"""


def server_commands(nodes: int, host: str, port: int) -> str:
    """What is typed on the server."""
    run = ["--num-agents", str(nodes or 3), "--rounds", "50"]
    return f"""\
== Server ({host}), in its copy of the folder `server` ==

With gRPC, the run itself listens on port {port}, and nodes connect to it:

{shlex.join(server_words(".", port, *run))}

With Flower, a SuperLink that only this machine reaches, and before it a gate on port {port}, which lets nodes through
and nobody else:

{shlex.join(server_words(".", port, flower=True))}

and in a second terminal, in the same folder, the run:

{shlex.join(run_words(".", port, *run))}
"""


def node_commands(number: int | None, host: str, port: int) -> str:
    """What is typed on one node, or on each of them."""
    where = (
        "Each site, in its folder" if number is None else f"Node {number}, in its copy of the folder `node-{number}`"
    )
    return f"""\
== {where} ==

With gRPC:

{shlex.join(node_words(".", host, port))}

With Flower:

{shlex.join(node_words(".", host, port, flower=True))}

With an agent of its own, add: --agent FILE.py:FUNCTION --data PATH
"""
