"""Names in theory: each means one thing."""

import ast
import collections
import importlib
import inspect
import pathlib
import pkgutil

import fedhsa
from fedhsa import theory

PACKAGES = ["fedhsa.theory"]
PACKAGES += [m.name for m in pkgutil.walk_packages(theory.__path__, "fedhsa.theory.") if m.ispkg]
ROLES = {"Server", "Memory"}
"""What every method calls the state of its server and that of an agent."""


def test_no_name_is_both_a_submodule_and_something_else_in_the_same_room():
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.iter_modules(package.__path__):
            assert inspect.ismodule(getattr(package, module.name, theory)), f"{name}.{module.name}"


def test_what_users_call_is_a_function_and_nothing_else():
    for name in ("predict", "choose", "constants", "estimate", "check", "joint_map"):
        assert inspect.isfunction(getattr(theory, name))
        assert not any(module.name == name for module in pkgutil.iter_modules(theory.__path__))


def test_a_class_of_theory_shares_its_name_with_no_other_class_of_the_package():
    found = collections.defaultdict(list)
    root = pathlib.Path(fedhsa.__file__).parent
    for path in root.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path.relative_to(root).as_posix())
    twice = {name: files for name, files in found.items() if len(files) > 1 and name not in ROLES}
    assert not {name for name, files in twice.items() if any(file.startswith("theory/") for file in files)}
    assert "Report" not in twice
