"""COMMANDS.txt: what each person of a federation types, on which machine."""


def address(host: str, port: int) -> str:
    """A host and a port as commands take them.

    >>> address("2001:db8::7", 8000)
    '[2001:db8::7]:8000'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def all_commands(nodes: int, host: str, port: int) -> str:
    """What each person types with the keys of `make_keys`."""
    parts = [_copy(nodes), server_commands(host, port)]
    return "\n\n".join(parts + [node_commands(i, host, port) for i in range(nodes)])


def _copy(nodes: int) -> str:
    packages = """\
Every machine needs the same version of fedhsa: pip install '.[grpc]' in a clone, elsewhere pip install 'fedhsa[grpc]'
(with Flower: [flower] instead)."""
    if nodes:
        return f"""\
Copy the folder `server` to the server, and each folder `node-...` to its node, over a channel you trust. Nobody else
may have `server.key` or a `key`. The folder `authority` is copied nowhere.

{packages}"""
    return f"""\
Copy the folder `server` to the server over a channel you trust. Nobody else may have `server.key`. The folder
`authority` is copied nowhere.

Each site makes its own private key, which never leaves its machine:

    site:      fedhsa deploy keys request node-0
               sends you node-0/request.pem, and tells you its fingerprint by telephone
    you:       fedhsa deploy keys sign FOLDER request.pem --number 0 --fingerprint ...
               sends server/nodes/node-0.crt back, and copies it to the server's folder `nodes`
    site:      fedhsa deploy keys accept node-0 node-0.crt

{packages}"""


def server_commands(host: str, port: int) -> str:
    """What is typed on the server."""
    return f"""\
== Server ({host}), in its copy of the folder `server` ==

With gRPC, the run itself listens on port {port}, and is started first:

fedhsa deploy grpc --listen 0.0.0.0:{port} --keys . --num-agents 3 --rounds 50

With Flower, a SuperLink that only this machine reaches, and before it a gate on port {port} that lets nodes through:

fedhsa deploy superlink --listen 0.0.0.0:{port} --keys .
"""


def node_commands(number: int, host: str, port: int) -> str:
    """What is typed on one node."""
    return f"""\
== Node {number}, in its copy of the folder `node-{number}` ==

fedhsa deploy node --server {address(host, port)} --keys .

or, where the server runs Flower:

fedhsa deploy node --superlink {address(host, port)} --keys .

An agent of your own: --agent FILE.py:FUNCTION --data PATH
"""
