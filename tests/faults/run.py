"""`make faults`: breaks the package in small ways, one at a time, and shows which of them the fast tests do not notice.

Each `*.toml` next to this file lists faults of one package: a text that occurs once in a file, and a wrong one in its
place. Every worker has a copy of the tree. It applies a fault there, runs the fast tests that should notice it, and
takes it back. The tests must pass without any fault, which is checked first.
"""

import argparse
import ast
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
LONGEST = 300
"""Seconds after which a run of tests is ended. A fault that makes a test run forever is not shown by a failure."""


WORDLESS = re.compile(r"#.*|\s")
DEFINITION = re.compile(r"^(?:def|class) ", re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """One entry of the tables, which is called `name` here."""

    name: str
    file: str
    before: str
    after: str
    why: str
    tests: tuple[str, ...]
    only: str = ""
    """Selects among the tests by their names, as `-k` of pytest does."""

    def planted(self, text: str) -> str:
        """Returns the text of the file with the fault. Raises `ValueError` if it cannot be planted."""
        if (count := text.count(self.before)) != 1:
            raise ValueError(f"`before` occurs {count} times in {self.file}, and must occur once")
        if WORDLESS.sub("", self.before) == WORDLESS.sub("", self.after):
            raise ValueError(f"`after` changes nothing that {self.file} does")
        if self.file.endswith(".py"):
            self._check_syntax(text)
        return text.replace(self.before, self.after)

    def _check_syntax(self, text: str) -> None:
        # Only the function or class around the fault is parsed if possible, which takes a tenth of the time.
        begins, at = [match.start() for match in DEFINITION.finditer(text)], text.index(self.before)
        first = max((begin for begin in begins if begin <= at), default=0)
        last = min((begin for begin in begins if begin >= at + len(self.before)), default=len(text))
        try:
            ast.parse(text[first:last].replace(self.before, self.after))
        except SyntaxError:
            try:
                ast.parse(text.replace(self.before, self.after))
            except SyntaxError as error:
                raise ValueError(f"`after` is not valid Python in {self.file}: {error}") from error


def read(only: str = "") -> list[Fault]:
    """Reads the faults whose table, file or reason contains the text `only`."""
    faults = []
    for table in sorted(HERE.glob("*.toml")):
        for number, entry in enumerate(tomllib.loads(table.read_text())["fault"], start=1):
            tests = tuple(entry.pop("tests"))
            faults.append(Fault(f"{table.stem} {number}", tests=tests, **entry))
    return [fault for fault in faults if only in f"{fault.name}\n{fault.file}\n{fault.why}"]


class Trees:
    """Copies of the tree, each used by one worker at a time, and the processes that run in them."""

    def __init__(self, folder: pathlib.Path, count: int):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        self.free: queue.Queue[pathlib.Path] = queue.Queue()
        self.running: set[subprocess.Popen[str]] = set()
        self.stopped = False
        for number in range(count):
            tree = folder / str(number)
            for path in map(os.fsdecode, filter(None, listed.stdout.split(b"\0"))):
                if (ROOT / path).is_file():  # git also lists files that were deleted since the last commit
                    (tree / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(ROOT / path, tree / path)
            self.free.put(tree)

    @contextmanager
    def one(self) -> Iterator[pathlib.Path]:
        """Lends a copy."""
        tree = self.free.get()
        try:
            yield tree
        finally:
            self.free.put(tree)

    def python(self, tree: pathlib.Path, *arguments: str) -> tuple[int | None, str]:
        """Runs Python in the copy, on its package. Returns the exit code, or None after `LONGEST`, and the output."""
        if self.stopped:
            raise InterruptedError
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tree,
            # Plugins that happen to be installed take a quarter of the time of a short run.
            env=os.environ | {"PYTHONPATH": str(tree / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.running.add(process)
        try:
            output, _ = process.communicate(timeout=LONGEST)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            end(process)
            self.running.discard(process)

    def stop(self) -> None:
        """Ends everything that runs and begins nothing new."""
        self.stopped = True
        for process in tuple(self.running):
            end(process)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process with all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def pytest(tests: Sequence[str], only: str) -> list[str]:
    """The command that runs the fast ones of the tests up to the first failure."""
    return ["-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "-k", only, "-x", "-q", "--tb=short", *tests]


def write(path: pathlib.Path, text: str) -> None:
    """Writes a source file, and removes its bytecode, which a change within one second would leave in use."""
    path.write_text(text)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def passes(trees: Trees, tests: Sequence[str], only: str) -> str:
    """Runs the tests without a fault, and returns what they say if they do not pass."""
    with trees.one() as tree:
        code, where = trees.python(tree, "-c", "import fedhsa; print(fedhsa.__file__)")
        if not where.startswith(str(tree)):
            return f"The tests would not import the package of the copy {tree}, but {where or code}"
        code, output = trees.python(tree, *pytest(tests, only))
    return "" if code == 0 else f"{tests} end with code {code} without any fault:\n{output}"


def without_faults(faults: Sequence[Fault]) -> list[tuple[list[str], str]]:
    """The tests of all faults and what selects among them, file by file, so that each of them runs once."""
    whole: dict[str, set[str]] = {}
    selected: dict[str, set[str]] = {}
    for fault in faults:
        for test in fault.tests:
            if fault.only:
                selected.setdefault(test, set()).add(f"({fault.only})")
            else:
                whole.setdefault(test.split("::")[0], set()).add(test)
    runs = [([file] if file in tests else sorted(tests), "") for file, tests in whole.items()]
    return runs + [([test], " or ".join(sorted(words))) for test, words in selected.items() if test not in whole]


def outcome(trees: Trees, fault: Fault) -> tuple[str, float]:
    """Plants one fault. Returns "caught", "SURVIVED" or what is wrong with the entry, and the seconds it took."""
    start = time.perf_counter()
    with trees.one() as tree:
        path = tree / "src/fedhsa" / fault.file
        text = path.read_text()
        try:
            write(path, fault.planted(text))
            code, output = trees.python(tree, *pytest(fault.tests, fault.only))
        except ValueError as error:
            return f"ERROR: {error}", time.perf_counter() - start
        finally:
            write(path, text)
    last = (output.strip().splitlines() or [""])[-1]
    verdicts = {0: "SURVIVED", 1: "caught", None: f"ERROR: the tests ran longer than {LONGEST} s"}
    return verdicts.get(code, f"ERROR: pytest ended with code {code}: {last}"), time.perf_counter() - start


def main() -> int:
    """Plants all faults, and returns 1 if one survives or an entry is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("only", nargs="?", default="", help="only faults whose table, file or reason contains this")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without faults first")
    options = parser.parse_args()
    faults = read(options.only)
    if not faults:
        print(f"No fault has {options.only!r} in its table, file or reason.")
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="fedhsa-faults-") as folder, ThreadPoolExecutor(options.workers) as pool:
        trees = Trees(pathlib.Path(folder), options.workers)
        try:
            if not options.unchecked:
                start, runs = time.perf_counter(), without_faults(faults)
                for failure in pool.map(lambda run: passes(trees, *run), runs):
                    if failure:
                        trees.stop()
                        print(failure)
                        return 1
                print(f"The tests pass without faults ({time.perf_counter() - start:.0f} s).", flush=True)
            return plant(trees, pool, faults)
        except KeyboardInterrupt:
            print("Interrupted; the copies are removed.")
            return 130
        finally:
            trees.stop()
            pool.shutdown(cancel_futures=True)


def plant(trees: Trees, pool: ThreadPoolExecutor, faults: Sequence[Fault]) -> int:
    """Plants the faults, prints one line for each and the table of those that were not caught."""
    start, missed, counts = time.perf_counter(), [], Counter[str]()
    jobs = {pool.submit(outcome, trees, fault): fault for fault in faults}
    for job in as_completed(jobs):
        fault, (verdict, seconds) = jobs[job], job.result()
        counts[verdict.split(":")[0]] += 1
        print(f"{fault.name:16} {fault.file:36} {seconds:6.1f} s  {verdict}", flush=True)
        if verdict != "caught":
            missed.append((fault, verdict))
    for fault, verdict in sorted(missed, key=lambda pair: pair[0].name):
        print(
            f"\n{fault.name}, {fault.file}: {verdict}\n  before: {fault.before}\n  after:  {fault.after}\n  {fault.why}"
        )
    words = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
    print(f"\n{len(faults)} faults in {time.perf_counter() - start:.0f} s: {words}.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
