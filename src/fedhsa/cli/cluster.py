"""The executor of a command's work: this process, or the processes of a Ray cluster with `--ray`."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import Executor

from rich.console import Console

from .errors import FailedRunError
from .settings import RayFlags


@contextlib.contextmanager
def executor(settings: RayFlags, console: Console, as_on: int | None = None) -> Iterator[Executor | None]:
    """Yields the executor that the flags request, None for this process; `as_on` is as for `ray_executor`."""
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
