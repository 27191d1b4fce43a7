"""Pages that show what their code prints: how they are read, run, compared and brought up to date.

A page is Markdown. Its `python` blocks run from top to bottom in one namespace, and every block that prints is followed
by a `text` block that shows what. Commands are shown in `console` blocks, after a `$`, or in `sh` blocks with a `text`
block after them; those without one are not run. Numbers must be equal to six digits, and spaces may be fewer or more.
`...` stands for anything, and `/home/me` for the folder in which the page is run. What cannot be run is marked with
the reason, `<!-- not run: it needs a network -->`, before the block.
"""

import contextlib
import dataclasses
import difflib
import io
import math
import os
import pathlib
import re
import runpy
import shlex
import string
import sys

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
HOME = "/home/me"
SHELL = ("sh", "bash")
NUMBER = r"(?<![\w.])[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?!\w)"


@dataclasses.dataclass
class Block:
    """What stands between two fences, and what was printed in its place when the page ran."""

    language: str
    text: str
    line: int
    """Where it begins on the page: the line of its fence, counted from 0."""
    not_run: str | None
    """Why it is left out, where it is."""
    printed: str | None = None
    """What should stand here, or, of code, what it prints and the page does not show; None where there is nothing."""


def name(page: pathlib.Path) -> str:
    """How a page is called from the root."""
    return str(page.relative_to(ROOT))


def read(text: str) -> list[Block]:
    """The blocks of a page in their order."""
    found, lines, begun, reason = [], text.splitlines(), None, None
    for number, line in enumerate(lines):
        if begun is None:
            if line.startswith("```"):
                begun = number
            elif marked := re.fullmatch(r"<!-- not run: (.+) -->", line):
                reason = marked[1]
            elif line:
                reason = None
        elif line == "```":
            found.append(Block(lines[begun][3:], "\n".join(lines[begun + 1 : number]), begun, reason))
            begun = reason = None
    return found


def commands(block: Block) -> list[list[str]]:
    """The commands of a block as words, without comments, continued lines joined, with the values of variables."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    found, known = [], {}
    for line in lines:
        line = string.Template(line).safe_substitute(known)
        if assigned := re.fullmatch(r'(\w+)="(.*)"', line):
            known[assigned[1]] = assigned[2]
        elif words := shlex.split(line, comments=True):
            found.append(words)
    return found


def run(page: pathlib.Path, folder: pathlib.Path) -> list[Block]:
    """Runs a page in a folder; gives its blocks, with what was printed."""
    namespace = {"__name__": page.stem}
    blocks = read(page.read_text())
    if not (folder / "examples").exists():
        (folder / "examples").symlink_to(ROOT / "examples")
    with _inside(folder):
        for block, after in zip(blocks, [*blocks[1:], None], strict=False):
            shown = after if after is not None and after.language == "text" and not after.not_run else None
            if block.not_run:
                continue
            if block.language == "python":
                code = compile("\n" * (block.line + 1) + block.text, str(page), "exec")
                printed = _printed(folder, lambda code=code: exec(code, namespace))
                if shown:
                    shown.printed = printed
                elif printed:
                    block.printed = printed
            elif block.language == "console":
                said = [(words, _printed(folder, lambda words=words: _command(words))) for words in commands(block)]
                block.printed = "\n".join(f"$ {shlex.join(words)}\n{printed}".rstrip() for words, printed in said)
            elif block.language in SHELL and shown:
                shown.printed = _printed(folder, lambda block=block: [_command(words) for words in commands(block)])
    return blocks


def run_blocks(blocks: list[Block], page: pathlib.Path, folder: pathlib.Path) -> None:
    """Runs some blocks of a page in a folder, for the files that they leave."""
    namespace = {"__name__": page.stem}
    with _inside(folder):
        for block in blocks:
            if block.language == "python":
                exec(compile("\n" * (block.line + 1) + block.text, str(page), "exec"), namespace)
            else:
                for words in commands(block):
                    _command(words)


def _where(page: pathlib.Path, block: Block) -> str:
    return f"{name(page)}:{block.line + 1}"


@contextlib.contextmanager
def _inside(folder: pathlib.Path):
    before, path, columns = os.getcwd(), [*sys.path], os.environ.get("COLUMNS")
    os.chdir(folder)
    os.environ["COLUMNS"] = "120"
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)


def _printed(folder: pathlib.Path, act) -> str:
    """What an act prints, line by line without spaces at their ends."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        act()
    lines = out.getvalue().replace(str(folder), HOME).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n")


def _command(words: list[str]) -> None:
    """Runs `fedhsa` and scripts in this process; other programs, such as pip, are for the reader."""
    if words[0] == "fedhsa":
        from fedhsa.cli import main

        assert main(words[1:]) == 0, f"`{shlex.join(words)}` fails"
    elif words[0] == "python":
        arguments, sys.argv = sys.argv, words[1:]
        try:
            runpy.run_path(words[1], run_name="__main__")
        finally:
            sys.argv = arguments


def agree(shown: str, printed: str) -> bool:
    """Whether what a page shows is what was printed, but for the wildcards.

    >>> agree("a 0.12 ... end", "a  0.12 and so on to the end"), agree("a 0.12", "a 0.13")
    (True, False)
    """
    parts = re.split(rf"({NUMBER}|\.\.\.|\s+)", shown.strip())
    pattern = "".join(_pattern(part) for part in parts)
    if not (found := re.fullmatch(pattern, printed.strip(), flags=re.DOTALL)):
        return False
    expected = [part for part in parts if re.fullmatch(NUMBER, part)]
    return all(_near(*pair) for pair in zip(expected, found.groups(), strict=True))


def _pattern(part: str) -> str:
    if re.fullmatch(NUMBER, part):
        return f"({NUMBER})"
    if part == "...":
        return ".*?"
    if part.isspace():
        return r"\s*\n\s*" if "\n" in part else r"[ \t]+"
    return re.escape(part)


def _near(shown: str, printed: str) -> bool:
    """Equal as far as they are printed, or to six digits; what is zero up to rounding is zero."""
    a, b = (float(number.replace(",", "")) for number in (shown, printed))
    return math.isclose(a, b, rel_tol=1e-6) or max(abs(a), abs(b)) < 1e-12


def differs(block: Block) -> bool:
    """Whether something else should stand here, or after it."""
    return block.printed is not None and (block.language == "python" or not agree(block.text, block.printed))


def stale(page: pathlib.Path, blocks: list[Block]) -> list[str]:
    """What a page shows that is not what was printed, and what is printed and not shown."""
    return [f"{_where(page, b)} has\n{b.text}\n-- and prints\n{b.printed}\n" for b in blocks if differs(b)]


def unexplained(page: pathlib.Path) -> list[str]:
    """The `text` blocks that no code stands before, which nothing can be compared with."""
    blocks = read(page.read_text())
    return [
        _where(page, block)
        for before, block in zip([None, *blocks], blocks, strict=False)
        if block.language == "text" and not block.not_run
        if before is None or before.not_run or before.language not in ("python", *SHELL)
    ]


def renew(page: pathlib.Path, blocks: list[Block]) -> bool:
    """Writes what was printed into a page, block by block where they differ; whether it changed anything."""
    lines = page.read_text().splitlines()
    for block in reversed([block for block in blocks if differs(block)]):
        printed = block.printed or ""
        begin, end = block.line + 1, block.line + 1 + len(block.text.splitlines())
        if block.language == "python":
            lines[end + 1 : end + 1] = ["", "```text", *printed.splitlines(), "```"]
        else:
            lines[begin:end] = _shortened(block.text, printed)
    before, after = page.read_text(), "\n".join(lines) + "\n"
    page.write_text(after)
    return after != before


def _shortened(shown: str, printed: str) -> list[str]:
    """What was printed, cut as the page had it: each line shown becomes the next printed one that is like it."""
    left, found = printed.splitlines(), []
    for line in shown.splitlines() if "..." in shown else ():
        near = difflib.get_close_matches(line, left, 1)
        if "..." in line and not (near and "..." in near[0]):  # dots that leave something out
            near = []
        found += near or [line]
        left = left[left.index(near[0]) + 1 :] if near else left
    return found or left
