"""Makes the site: writes build/docs from the pages and the package, lets MkDocs build it, and checks the result.

    python docs/make_site.py             # build the site in build/site and check it
    python docs/make_site.py serve       # show it at http://127.0.0.1:8000, and again whenever a page changes
    python docs/make_site.py diagrams    # draw the Mermaid diagrams of the pages as pictures in docs/figures
    python docs/make_site.py times       # measure how long the examples take, into docs/gallery.json

The pages in docs/ are written for GitHub and for the site. The differences are made on the way: links to files outside
docs/ lead to their copies on the site or to the repository, and diagrams become pictures. The API reference, the help
of the commands, the gallery and copies of the files at the root are added.
"""

import ast
import contextlib
import functools
import hashlib
import html.parser
import importlib
import inspect
import io
import itertools
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import types
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS, STAGE, SITE = ROOT / "docs", ROOT / "build" / "docs", ROOT / "build" / "site"
GALLERY = DOCS / "gallery.json"
COPIES = {
    "README.md": "index.md",  # whose place on the site is the home page
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "examples": "gallery/index.md",
    "examples/pedestrians/README.md": "gallery/pedestrians.md",
    "examples/private_series/README.md": "gallery/private-series.md",
}
"""Files outside of docs/ that the site shows, and where."""
MKDOCS = [sys.executable, "-m", "mkdocs"]
QUIETLY = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # without the note that Material has a successor
CODE = re.compile(r"^(?P<fence>`{3,})[^\n]*\n.*?^(?P=fence)$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)


# ----------------------------------------------------------------------------------------------------------- pages


@functools.cache
def pages() -> dict[str, pathlib.Path]:
    """Every page that is written by hand: where it is on the site, and its file."""
    found = {str(path.relative_to(DOCS)): path for path in sorted(DOCS.rglob("*.md"))}
    copies = {there: ROOT / name for name, there in COPIES.items() if name.endswith(".md") and there != "index.md"}
    return found | {there: path for there, path in copies.items() if path.exists()}


def stage(folder: pathlib.Path = STAGE) -> None:
    """Writes what MkDocs reads. Files that have not changed are left alone."""
    before = {path for path in folder.rglob("*") if path.is_file()}
    texts = {there: _for_site(path.read_text(), path, there) for there, path in pages().items()}
    texts["reference/command-line.md"] += "\n" + command_line()
    texts["index.md"] = "---\nhide: [navigation, toc]\n---\n\n" + texts["index.md"]
    texts |= {f"reference/api/{name}.md": text for name, text in api_pages().items()}
    texts["gallery/index.md"] = gallery()
    for there, text in texts.items():
        _write(folder / there, text.encode())
    others = [path for part in ("figures", "assets") for path in (DOCS / part).rglob("*") if path.is_file()]
    for path in others:
        _write(folder / path.relative_to(DOCS), path.read_bytes())
    mathjax = _mathjax()
    _write(folder / "assets" / "generated" / mathjax.name, mathjax.read_bytes())
    kept = {folder / there for there in texts} | {folder / path.relative_to(DOCS) for path in others}
    for path in before - kept - {folder / "assets" / "generated" / mathjax.name}:
        path.unlink()


def _write(path: pathlib.Path, content: bytes) -> None:
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _mathjax() -> pathlib.Path:
    """MathJax in one file, from a package that carries it for pages without a network."""
    for folder in map(pathlib.Path, sys.path):
        if (found := folder / "sphinx-mathjax-offline" / "static" / "mathjax" / "tex-svg.js").exists():
            return found
    raise SystemExit("The site needs the package sphinx-mathjax-offline. Run `make docs`, which installs it.")


@functools.cache
def repository() -> str:
    """The address of the source code, which mkdocs.yml states."""
    return re.findall(r"^  repository: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)[0]


def _for_site(text: str, path: pathlib.Path, there: str) -> str:
    """A page with links as the site needs them, and pictures in the place of diagrams."""
    for number, source in enumerate(DIAGRAM.findall(text), start=1):
        picture = os.path.relpath(DOCS / "figures" / diagram_name(path, number), path.parent)
        text = text.replace(f"```mermaid\n{source}```", f"![Diagram]({picture}){{ .diagram }}", 1)
    done, end = [], 0
    for code in CODE.finditer(text):
        done += [_relinked(text[end : code.start()], path, there), code[0]]
        end = code.end()
    return "".join([*done, _relinked(text[end:], path, there)])


def _relinked(text: str, path: pathlib.Path, there: str) -> str:
    return re.sub(r'(\]\(|(?:src|href)=")([^)\s"]+)', lambda found: found[1] + site_link(found[2], path, there), text)


def site_link(target: str, path: pathlib.Path, there: str) -> str:
    """A link of a file in the repository as the page `there` of the site must have it."""
    if re.match(r"[a-z]+:|#", target):
        return target
    name, hash, anchor = target.partition("#")
    file = pathlib.Path(os.path.normpath(path.parent / name))
    if not file.exists():
        return target  # MkDocs reports it
    known = {ROOT / name: place for name, place in COPIES.items()} | {file: place for place, file in pages().items()}
    if file in known:
        return os.path.relpath(known[file], os.path.dirname(there) or ".") + hash + anchor
    if file.is_relative_to(DOCS) and not file.is_dir():
        return os.path.relpath(file.relative_to(DOCS), os.path.dirname(there) or ".") + hash + anchor
    return f"{repository()}/{'tree' if file.is_dir() else 'blob'}/main/{file.relative_to(ROOT)}{hash}{anchor}"


# ------------------------------------------------------------------------------------------------------- reference


@functools.cache
def public() -> dict[str, list[str]]:
    """The public modules and their names: the package, and every module that a public module lists in `__all__`."""
    found: dict[str, list[str]] = {}
    waiting = ["fedhsa"]
    while waiting:
        module = importlib.import_module(waiting.pop(0))
        if module.__name__ not in found:
            found[module.__name__] = list(module.__all__)
            values = (getattr(module, name) for name in module.__all__)
            waiting += [value.__name__ for value in values if isinstance(value, types.ModuleType)]
    return found


@functools.cache
def homes() -> dict[str, str]:
    """Where each public name, such as `fedhsa.FedHSA`, is documented: there, or under another of its public names."""
    listed = {f"{module}.{name}": value for module, name, value in _listed()}
    found = {}
    for path, value in listed.items():
        same = [other for other, object in listed.items() if object is value] if _is_object(value) else [path]
        defined = (getattr(value, "__module__", None) or "").split(".")
        found[path] = max(same, key=lambda other: (_shared(other.split("."), defined), len(other)))
    return found


def _shared(path: Sequence[str], other: Sequence[str]) -> int:
    """The number of parts with which two paths begin alike."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(path, other, strict=False)))


def _listed() -> Iterator[tuple[str, str, Any]]:
    for module, names in public().items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            if not isinstance(value, types.ModuleType) and not name.startswith("__"):
                yield module, name, value


def _is_object(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isfunction(value) or isinstance(value, dict)


def _page_of(module: str) -> str:
    """The page of a public module: the package below `fedhsa` that it belongs to."""
    return module.split(".")[1] if "." in module else module


def api_pages() -> dict[str, str]:
    """The pages of the API reference: one for each package, with its public modules as sections."""
    places, texts = homes(), {}
    for module, names in public().items():
        loaded = importlib.import_module(module)
        page, own = _page_of(module), len(module.split(".")) > 2
        heading = f"{'##' if own else '#'} `{module}`"
        paths = [path for name in names if (path := f"{module}.{name}") in places]
        here = [path for path in paths if places[path] == path]
        entries = _grouped(module, here) if not own else "".join(map(_entry, here))
        elsewhere = "".join(_reference(path, places[path]) for path in paths if places[path] != path)
        elsewhere = elsewhere and f"These names are documented with the module that they belong to:\n\n{elsewhere}\n"
        text = f"{heading}\n\n{inspect.getdoc(loaded) or ''}\n\n{elsewhere}{entries}"
        texts[page] = f"{texts[page]}\n{text}" if page in texts else text
    return texts


def _grouped(module: str, paths: list[str]) -> str:
    """The entries of a package, methods and wrappers apart from the rest."""
    loaded = importlib.import_module(module)
    tables = {"Methods": getattr(loaded, "ALGORITHMS", {}), "Wrappers": getattr(loaded, "WRAPPERS", {})}
    groups = {
        title: [path for path in paths if path.rpartition(".")[2] in table] for title, table in tables.items() if table
    }
    rest = [path for path in paths if not any(path in group for group in groups.values())]
    groups = {title: group for title, group in groups.items() if group}
    if not groups:
        return "".join(map(_entry, rest))
    return "".join(
        f"## {title}\n\n{''.join(map(_entry, group))}" for title, group in (*groups.items(), ("Other names", rest))
    )


def _entry(path: str) -> str:
    """Asks mkdocstrings for one name, with anchors for the other paths that users know it by."""
    module, _, name = path.rpartition(".")
    value = getattr(importlib.import_module(module), name)
    source = f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else path
    others = [other for other, home in homes_of(path) if other != source]
    anchors = "".join(f'<a id="{other}"></a>' for other in others)
    return f"{anchors}\n\n::: {source}\n    options:\n      heading: {name}\n      toc_label: {name}\n\n"


def homes_of(path: str) -> list[tuple[str, str]]:
    """All public paths of what is documented at a path."""
    return [(other, home) for other, home in homes().items() if home == path]


def _reference(path: str, home: str) -> str:
    module, _, name = path.rpartition(".")
    first = summary(getattr(importlib.import_module(module), name))
    there = _page_of(home.rpartition(".")[0])
    return f"- [`{name}`]({there}.md#{path}){first and f': {first}'}\n"


def summary(value: Any) -> str:
    """The first sentence of a docstring."""
    text = inspect.getdoc(value) if not isinstance(value, dict) else ""
    return re.split(r"(?<=[.?!])\s", " ".join((text or "").split("\n\n")[0].split()))[0]


# ---------------------------------------------------------------------------------------------------- command line


def command_line() -> str:
    """The help of every command as it prints it."""
    return "## The help of every command\n\n" + "\n".join(
        f"### `{' '.join(['fedhsa', *words])}`\n\n```text\n{printed}\n```\n" for words, printed in _helps()
    )


def _helps() -> Iterator[tuple[list[str], str]]:
    from fedhsa import cli
    from fedhsa.cli import deploy_commands, deploy_settings

    yield [], _help([])
    for command in cli.COMMANDS:
        yield [command], _help([command])
        if command == "deploy":
            for name in (*deploy_settings.COMMANDS, *deploy_commands.MODULES):
                yield [command, name], _help([command, name])


def _help(words: list[str]) -> str:
    from fedhsa import cli

    out, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "84"  # as much as the page has room for
    try:
        with contextlib.redirect_stdout(out):
            assert cli.main([*words, "--help"]) == 0
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")


# --------------------------------------------------------------------------------------------------------- gallery


def gallery() -> str:
    """Every example: a picture, what it is about, the command that runs it, how long that takes, and the script."""
    examples = json.loads(GALLERY.read_text())
    cards = "".join(
        f"-   [**{example['title']}**](#{_stem(example)})\n\n{_picture(example, link=True)}    {_sentence(example)}\n\n"
        for example in examples
    )
    return (
        "# Gallery\n\nEvery example is a file that you can run as it is and then change; `fedhsa examples copy` writes "
        "all of them into a folder. The times are processor seconds on a server, compilation included.\n\n"
        f'<div class="grid cards" markdown>\n\n{cards}</div>\n\n' + "\n".join(map(_section, examples))
    )


def _picture(example: dict[str, Any], link: bool = False) -> str:
    if not example["figure"] or not (DOCS / "figures" / example["figure"]).exists():
        return ""
    picture = f"![{example['title']}](../figures/{example['figure']})"
    return f"    [{picture}](#{_stem(example)})\n\n" if link else f"{picture}\n\n"


def _stem(example: dict[str, Any]) -> str:
    return pathlib.Path(example["path"]).stem.replace("_", "-")


def _sentence(example: dict[str, Any]) -> str:
    return re.split(r"(?<=[.?!])\s", " ".join(_about(example).split("\n\n")[0].split()))[0]


def _about(example: dict[str, Any]) -> str:
    """What a file says about itself: its docstring, or the comment at its beginning."""
    text = (ROOT / example["path"]).read_text()
    if example["path"].endswith(".py"):
        return ast.get_docstring(ast.parse(text)) or ""
    return re.split(r"\.\s", text.splitlines()[0].removeprefix("# "))[0].rstrip(".") + "."


def _section(example: dict[str, Any]) -> str:
    path, text = example["path"], (ROOT / example["path"]).read_text()
    script = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    language = {"py": "python", "toml": "toml"}[path.rpartition(".")[2]]
    seconds = f"It takes {_duration(example['seconds'])}. " if example["seconds"] else ""
    more = f"More about it: [{_title(example['page'])}](../{example['page']})."
    return (
        f"## {example['title']} {{ #{_stem(example)} }}\n\n{_picture(example)}{_about(example)}\n\n"
        f"```sh\n{example['command']}\n```\n\n{seconds}{more}\n\n"
        f'??? example "{path}"\n    ```{language}\n{script}\n    ```\n'
    )


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} seconds" if seconds < 90 else f"{round(seconds / 60)} minutes"


def _title(page: str) -> str:
    """How the navigation calls a page, or else the page itself."""
    named = re.search(rf"- (.+): {re.escape(page)}$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    return named[1] if named else (DOCS / page).read_text().splitlines()[0].removeprefix("# ")


def times() -> None:
    """Runs every example in an empty folder and writes down its processor time, which other work does not change."""
    examples = json.loads(GALLERY.read_text())
    for example in examples:
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "examples").symlink_to(ROOT / "examples")
            program, *words = shlex.split(example["command"])
            python = [sys.executable, *(["-m", "fedhsa"] if program == "fedhsa" else [])]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*python, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        example["seconds"] = round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)
        print(f"{example['path']}: {example['seconds']} s", flush=True)
        GALLERY.write_text("[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in examples) + "\n]\n")


# -------------------------------------------------------------------------------------------------------- diagrams


def diagram_name(path: pathlib.Path, number: int) -> str:
    """The picture of a page's diagram, counted from 1."""
    return f"diagram-{path.stem.lower()}-{number}.svg"


def digest(source: str) -> str:
    """What tells one diagram's text from another's; its picture carries it."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def diagrams() -> dict[str, str]:
    """Every Mermaid diagram of the pages: the name of its picture, and its text."""
    return {
        diagram_name(path, number): source
        for path in pages().values()
        for number, source in enumerate(DIAGRAM.findall(path.read_text()), start=1)
    }


def stale_diagrams() -> list[str]:
    """The pictures that are missing, or that were drawn from another text."""
    return [
        name
        for name, source in diagrams().items()
        if not (picture := DOCS / "figures" / name).exists() or f"digest {digest(source)}" not in picture.read_text()
    ]


def draw_diagrams() -> None:
    """Draws the diagrams whose text has changed, in a browser, with the Mermaid that marimo carries."""
    if not (names := stale_diagrams()):
        return
    import marimo
    from playwright.sync_api import Route, sync_playwright

    static = pathlib.Path(marimo.__file__).parent / "_static"
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    host = "http://diagrams.invalid"

    def answer(route: Route) -> None:
        file = static / route.request.url.removeprefix(f"{host}/")
        if not file.is_file():
            return route.fulfill(body="<!doctype html>", content_type="text/html")
        text = file.read_text()
        # The file draws with Mermaid's object and does not export it.
        if used := re.search(r"await (\w+)\.render\(", text) if file.name.startswith("mermaid-") else None:
            text += f"\nexport{{{used[1]} as mermaid}};"
        return route.fulfill(body=text, content_type="text/javascript")

    module = next(path for path in static.glob("assets/mermaid-*.js") if ".render(" in path.read_text())
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"]).new_page()
        page.route("**/*", answer)
        page.goto(f"{host}/")
        for name in names:
            source = diagrams()[name]
            drawn = page.evaluate(DRAW, [f"/assets/{module.name}", pathlib.Path(name).stem, source])
            picture = re.sub(r"(<svg[^>]*>)", rf"\1<!-- digest {digest(source)} -->", drawn, count=1)
            (DOCS / "figures" / name).write_text(picture + "\n")
            print(f"docs/figures/{name}")


DRAW = """async ([file, id, source]) => {
    const { mermaid } = await import(file);
    const font = "system-ui, sans-serif";
    const layout = { htmlLabels: false, useMaxWidth: false };
    const notes = { noteBkgColor: "#fdf3e3", noteBorderColor: "#c0622d", noteTextColor: "#222" };
    mermaid.initialize({ startOnLoad: false, theme: "neutral", fontFamily: font, htmlLabels: false,
                         themeVariables: notes, flowchart: layout,
                         sequence: { useMaxWidth: false, mirrorActors: false } });
    return (await mermaid.render(id, source)).svg;
}"""


# ----------------------------------------------------------------------------------------------------------- check


class _Page(html.parser.HTMLParser):
    """The anchors of a built page, what it links to, and what it loads."""

    def __init__(self, text: str):
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given.get("href", ""))
        self.loads += [given["src"]] if "src" in given else []
        self.loads += re.findall(r"url\((.*?)\)", given.get("style", ""))


def faults(site: pathlib.Path = SITE) -> list[str]:
    """What is wrong with a built site: links and anchors that lead nowhere, and files from other hosts."""
    built = {path: _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in built.items():
        where = path.relative_to(site)
        if path.name == "404.html":  # is shown at any address, so that its links begin at the root
            continue
        for load in page.loads:
            if re.match(r"(?:[a-z]+:)?//", load):
                found.append(f"{where} loads {load}")
            elif not load.startswith("data:") and not (path.parent / urllib.parse.unquote(load.split("?")[0])).exists():
                found.append(f"{where} loads {load}, which does not exist")
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = urllib.parse.unquote(link).partition("#")
            target = pathlib.Path(os.path.normpath(path.parent / name)) if name else path
            if not target.exists():
                found.append(f"{where} links to {link}, which does not exist")
            elif anchor and target.suffix == ".html" and anchor not in built[target].anchors:
                found.append(f"{where} links to {link}, where there is no such place")
    styles = [path for path in site.rglob("*.css") if re.search(r"url\([\"']?(?:https?:)?//|@import", path.read_text())]
    return found + [f"{path.relative_to(site)} loads from another host" for path in styles]


# --------------------------------------------------------------------------------------------------------- command


def build() -> int:
    """Builds the site and checks it; gives the exit code."""
    stage()
    if code := subprocess.run([*MKDOCS, "build", "--strict", "--quiet"], cwd=ROOT, env=QUIETLY).returncode:
        return code
    found = faults()
    print("\n".join(found) if found else f"The site is in {SITE}.")
    return 1 if found else 0


def serve() -> int:
    """Shows the site, and again whenever a page has changed."""
    stage()
    server = subprocess.Popen([*MKDOCS, "serve"], cwd=ROOT, env=QUIETLY)
    seen = _changed()
    try:
        while server.poll() is None:
            time.sleep(1)
            if (now := _changed()) != seen:
                seen = now
                pages.cache_clear()
                stage()
    except KeyboardInterrupt:
        server.wait()
    return server.returncode


def _changed() -> list[float]:
    return [path.stat().st_mtime for path in (*pages().values(), *DOCS.rglob("*")) if path.is_file()]


def main(arguments: list[str]) -> int:
    """Runs one of the commands above; gives the exit code."""
    commands = {"build": build, "serve": serve, "stage": stage, "diagrams": draw_diagrams, "times": times}
    command = arguments[0] if arguments else "build"
    if command not in commands:
        print(f"make_site.py has the commands {', '.join(commands)}, got {command!r}.", file=sys.stderr)
        return 2
    return commands[command]() or 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    sys.exit(main(sys.argv[1:]))
