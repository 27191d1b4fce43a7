"""Who computes what a command asks for: this process, or with `--ray` the processes of a Ray."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor

from rich.console import Console

from .errors import FailedRunError
from .settings import RayFlags


@contextlib.contextmanager
def executor(settings: RayFlags, console: Console, as_on: int | None = None) -> Iterator[Executor | None]:
    """The executor that the flags ask for, None for this process; `as_on` is that of `ray_executor`."""
    if not (settings.ray or settings.ray_address):
        yield None
        return
    from ..deploy import ray_executor

    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(ray_executor(settings.ray_address, as_on=as_on))
        except ConnectionError as error:
            raise FailedRunError(str(error).replace("`address`", "`ray`")) from error
        console.print(f"Ray: {found.cores} cores {found.where}.", soft_wrap=True)
        yield found
