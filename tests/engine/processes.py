"""Runs a Python script in several processes that form one, and waits for them."""

import subprocess
import sys

from fedhsa.engine.hosts import free_port

BEGIN = """
import sys
import fedhsa as fh
fh.join_processes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), timeout=60)
"""


def together(script: str, count: int, *arguments: str, timeout: float = 240) -> list[str]:
    """What each process prints; fails with the output of all where one fails."""
    where = f"localhost:{free_port()}"
    command = [sys.executable, "-c", BEGIN + script]
    started = [
        subprocess.Popen(
            [*command, where, str(count), str(index), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(count)
    ]
    try:
        printed = [process.communicate(timeout=timeout)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(printed)
    return printed
