"""Files that run a federation on real machines: docker compose, systemd, Kubernetes, and what to watch it with."""

import json
import os
import pathlib
import re
import shlex

from .. import _check, _files
from .._version import __version__
from .address import check_host, check_port
from .commands import join, node_words, run_words, server_words

TEMPLATES = pathlib.Path(__file__).with_name("templates")
METRICS = 9464
"""The port on which server and nodes tell Prometheus how they are."""
NOBODY = (10001, 10001)
"""The user and group that the image has, in the place of root."""


def write_files(
    folder: str | os.PathLike,
    *,
    host: str = "192.0.2.7",
    port: int = 8000,
    nodes: int = 3,
    flower: bool = False,
    user: tuple[int, int] | None = None,
) -> list[pathlib.Path]:
    """Writes a Dockerfile and, for the server and for a site, files for docker compose, systemd and Kubernetes.

    Nothing in them is secret. Files that exist are not overwritten.

    **Arguments:**

    - `folder`: where to write.
    - `host`: the name or address under which sites reach the server.
    - `port`: the server's port.
    - `nodes`: how many agents there are.
    - `flower`: whether messages travel through Flower, not gRPC.
    - `user`: the user and group that containers run as, to whom keys and state must belong. Default: this process's,
        unless that is root.

    **Returns:** the files.
    """
    folder = pathlib.Path(folder)
    check_host("host", host)
    check_port("port", _check.count("port", port))
    _check.count("nodes", nodes)
    here = (os.getuid(), os.getgid()) if hasattr(os, "getuid") else NOBODY  # Windows has no such numbers
    uid, gid = user or (here if here[0] else NOBODY)

    def server(keys: str, run: str, out: str, metrics: str, *further: str) -> list[str]:
        run_words = ["--config", run, "--out", out, "--resume", "--metrics", metrics, *further]
        return server_words(keys, port, *([] if flower else run_words), flower=flower)

    def node(keys: str, state: str, metrics: str) -> list[str]:
        return node_words(keys, host, port, "--state", state, "--metrics", metrics, flower=flower)

    run = shlex.join(run_words("/keys", port, "--config", "/run.toml", "--out", "/state/run"))
    start = "A run is started where the server is, for instance with docker compose:\n\n"
    start += f"    docker compose exec server {run}\n\n"
    seen, unseen = f"0.0.0.0:{METRICS}", str(METRICS)  # in a container, and on a machine
    values = {
        "address": join(host, port),
        "to": "--superlink" if flower else "--server",
        "port": str(port),
        "nodes": str(nodes),
        "uid": str(uid),
        "gid": str(gid),
        "version": __version__,
        "extra": "flower" if flower else "grpc",
        "image": f"fedhsa:{__version__}",
        "metrics": str(METRICS),
        "start": start if flower else "",
        "server_command": "flower" if flower else "grpc",
        "server_list": json.dumps(server("/keys", "/run.toml", "/state/run", seen, "--no-cache")[1:]),
        "node_list": json.dumps(node("/keys", "/state", seen)[1:]),
        "server_line": shlex.join(server("/etc/fedhsa/server", "/etc/fedhsa/run.toml", "/var/lib/fedhsa/run", unseen)),
        "node_line": shlex.join(node("/etc/fedhsa/node", "/var/lib/fedhsa", unseen)),
        "register": "\n".join(f"{' ' * 20}- {{key: node-{i}.crt, path: nodes/node-{i}.crt}}" for i in range(nodes)),
        "hardening": (TEMPLATES / "hardening.txt").read_text(),
    }
    texts = {
        str(path.relative_to(TEMPLATES)): re.sub("@([a-z_]+)@", lambda found: values[found[1]], path.read_text())
        for path in sorted(TEMPLATES.rglob("*"))
        if path.is_file() and path.name != "hardening.txt"
    }
    written = [folder / name for name in texts]
    if there := [str(path) for path in written if path.exists()]:
        raise FileExistsError(f"`folder`: {there[0]!r} exists, and is not overwritten. Name another folder.")
    for path, text in zip(written, texts.values(), strict=True):
        _files.write_text(path, text)
    for name in ("server/state", "site/state", "site/data"):  # docker would make them root's
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    return written
