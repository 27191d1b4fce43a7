"""Names in the text of pages: what stands in backticks exists in the package, on the command line or in the repository.

What is checked is what looks like a name of this project: `fh.theory.predict`, `theory.predict`, `result.status`,
`OneExchangeFedHSA`, `theta_star`, `simulate(...)` with its keywords, `--workers`, `fedhsa run`, `make pages`, tests and
`algorithms/fed_hsa.py`. Other words in backticks are left alone.
"""

import ast
import builtins
import fnmatch
import functools
import importlib
import inspect
import itertools
import pathlib
import re
from typing import Any

import pages

SOURCE = pages.ROOT / "src" / "fedhsa"
ROOTS = (pages.ROOT, pages.ROOT / "src", SOURCE, pages.ROOT / "tests", pages.ROOT / "docs")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
WORD = re.compile(r"[A-Za-z_]\w*")
DEFINED = re.compile(
    r'(?:def|class) (\w+)|^ *(\w+):|"(\w+)"|(\w+) ?=[^=]|[(,*] ?(\w+)[:,=)]',  # also fields, keys and arguments
    flags=re.MULTILINE,
)
NAMESPACES = (
    "algorithms",
    "comparison",
    "deploy",
    "engine",
    "environments",
    "plots",
    "problems",
    "statistics",
    "theory",
)
OF_OTHERS = {
    "--node-config": "a flag of Flower",
    "--ntasks-per-node": "a flag of Slurm",
    "AutoresetMode.SAME_STEP": "of Gymnasium",
    "AbstractX": "stands for any name",
    "axes.prop_cycle": "a setting of Matplotlib",
    "tight_layout": "an argument of Matplotlib",
    "jax_default_matmul_precision": "a setting of JAX",
    "vm.max_map_count": "a setting of Linux",
    "JAX_COMPILATION_CACHE_DIR": "a variable of JAX",
    "fedhsa/1": "the name of the protocol",
    "problems/least_squares.py": "what the reader is about to write",
    "algorithms/minibatch_sa.py": "what the reader is about to write",
    "algorithms/clipped.py": "what the reader is about to write",
}
"""What looks like a name of this project and is not, with the reason."""
ELSEWHERE = ("np", "jax", "jnp", "plt", "gymnasium", "gym", "flwr", "ray", "scipy", "eqx", "torch", "wandb", "mlflow")
"""Packages of others, as pages call them."""
COMMANDS_WRITE = ("build", "dist", "results", "runs")
"""Folders at the root that are not part of the repository."""
WRITTEN = re.compile(r"cff|crt|csv|gif|html|jsonl?|md|npz|pdf|pem|png|pub|state|svg|tex|toml|txt|yml")
"""Endings of files that commands write or readers have."""


@functools.cache
def defined() -> frozenset[str]:
    """The names in the code of the package, and of its modules and folders."""
    found = set(dir(builtins))
    for path in SOURCE.rglob("*.py"):
        found |= {name for names in DEFINED.findall(path.read_text()) for name in names}
        found.update(path.relative_to(SOURCE).with_suffix("").parts)
    return frozenset(found)


@functools.cache
def tests() -> frozenset[str]:
    """The names of all tests."""
    files = (pages.ROOT / "tests").rglob("test_*.py")
    return frozenset(itertools.chain.from_iterable(re.findall(r"def (test_\w+)", path.read_text()) for path in files))


@functools.cache
def flags() -> frozenset[str]:
    """The flags of all commands: fields of their settings, and words in the code."""
    found = set()
    for path in [*(SOURCE / "cli").rglob("*.py"), *pages.ROOT.glob("[bde]*/**/*.py")]:
        text = path.read_text()
        found |= set(re.findall(r"--[a-z][a-z-]+", text))
        found |= {f"--{name.replace('_', '-')}" for name in re.findall(r"^ *(\w+):", text, flags=re.MULTILINE)}
    return frozenset(found)


@functools.cache
def targets() -> frozenset[str]:
    """What `make` can make."""
    return frozenset(re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def unknown(page: pathlib.Path) -> list[str]:
    """What stands in backticks on a page, looks like a name of this project, and is not."""
    text = page.read_text()
    code = [block.text for block in pages.read(text)]
    own = frozenset(word for text in code for word in (*WORD.findall(text), *re.findall(r"(?:def|class) \w+", text)))
    plain = re.sub(r"^```.*?^```$|<!--.*?-->", lambda found: re.sub(r"\S", " ", found[0]), text, flags=re.DOTALL | re.M)
    spans = [(span[1], plain.count("\n", 0, span.start()) + 1) for span in SPAN.finditer(plain)]
    return [f"line {line}: {span}" for span, line in spans if not known(span, own)]


@functools.cache
def known(span: str, own: frozenset[str] = frozenset()) -> bool:
    """Whether a span is no name of this project, or one that exists; `own` are the names in the code of the page."""
    words = span.split() or [""]
    if span in OF_OTHERS or words[0].partition("=")[0] in OF_OTHERS:
        return True
    if words[0] == "make" and len(words) > 1:
        return words[1] in targets()
    if words[0] == "fedhsa" and len(words) > 1 and WORD.fullmatch(words[1]):
        return _command(words)
    if span.startswith("--"):
        return words[0].partition("=")[0] in flags()
    if re.fullmatch(r"test_\w+", span):
        return span in tests() | own
    if re.fullmatch(r"[\w.*-]+(/[\w.*-]*)+", span) or re.fullmatch(r"\w+\.py", span):
        return _path(span, own)
    if re.fullmatch(r"[\w-]+\.[a-z]{2,5}", span) and WRITTEN.fullmatch(span.rpartition(".")[2]):
        return True
    try:
        return _expression(ast.parse(span, mode="eval").body, own)
    except SyntaxError:
        return True  # a formula, a command, a pattern


def _command(words: list[str]) -> bool:
    from fedhsa import cli

    given = [word.partition("=")[0] for word in words if word.startswith("--")]
    return bool(re.search(rf"^  {words[1]} ", cli.HELP, flags=re.MULTILINE)) and flags().issuperset(given)


@functools.cache
def _path(name: str, own: frozenset[str]) -> bool:
    """Whether a file, a folder or a study exists, if the name is one of this repository."""
    from fedhsa.experiments.run.presets import studies

    first = name.partition("/")[0]
    ours = name.endswith(".py") or (first not in COMMANDS_WRITE and any((root / first).is_dir() for root in ROOTS))
    there = any((root / name).exists() or ("*" in name and any(root.glob(name))) for root in ROOTS)
    there = there or any(SOURCE.rglob(name)) or any(fnmatch.fnmatchcase(study, name) for study in studies())
    return there or not ours or pathlib.PurePath(name).stem in own


def _expression(tree: ast.expr, own: frozenset[str]) -> bool:
    """Whether an expression uses names that exist."""
    if isinstance(tree, ast.Call):
        inner = [entry for entry in (*tree.args, *(k.value for k in tree.keywords)) if isinstance(entry, ast.Call)]
        return _call(tree, own) and all(_expression(entry, own) for entry in inner)
    if isinstance(tree, ast.Attribute):
        return _dotted(ast.unparse(tree), own)
    if isinstance(tree, ast.Name):
        looks = re.fullmatch(r"[A-Z]+[a-z]\w*[A-Z]\w*", tree.id) or "_" in tree.id.strip("_")
        return not looks or tree.id in defined() | own
    return True


def _call(tree: ast.Call, own: frozenset[str]) -> bool:
    """Whether what is called exists and takes what it is given, where it is one of our functions or classes."""
    if not isinstance(tree.func, ast.Name):
        return _expression(tree.func, own)
    if len(tree.func.id) > 1 and tree.func.id not in defined() | own | {"G_i"}:
        return False
    takes = None if own & {f"def {tree.func.id}", f"class {tree.func.id}"} else _arguments(tree.func.id)
    bare = [entry.id for entry in tree.args if isinstance(entry, ast.Name)]
    given = [keyword.arg for keyword in tree.keywords if keyword.arg]
    if takes and 2 * len(takes.intersection(bare)) >= len(bare) > 1:
        given += bare  # `Exchange(name, send, local, aggregate)` says what it takes
    return not takes or takes.issuperset(given)


@functools.cache
def _arguments(name: str) -> frozenset[str] | None:
    """The arguments of a public function or class; None if it has other ones, or is not public."""
    import fedhsa

    for namespace in (fedhsa, *(getattr(fedhsa, one) for one in NAMESPACES)):
        if callable(found := getattr(namespace, name, None)):
            arguments = inspect.signature(found).parameters.values()
            return None if any(a.kind is a.VAR_KEYWORD for a in arguments) else frozenset(a.name for a in arguments)
    return None


def _dotted(name: str, own: frozenset[str]) -> bool:
    """Whether a name with points exists: from the package, or as an attribute of something."""
    import fedhsa

    root, *rest = name.split(".")
    if root in ELSEWHERE or not all(map(WORD.fullmatch, (root, *rest))):
        return True
    here: Any = fedhsa if root in ("fh", "fedhsa") else getattr(fedhsa, root, None)
    if here is None:
        return (defined() | own).issuperset(rest)
    for part in rest:
        try:
            here = getattr(here, part) if hasattr(here, part) else importlib.import_module(f"{here.__name__}.{part}")
        except (ImportError, AttributeError):
            return part in getattr(here, "__annotations__", {})
    return True
