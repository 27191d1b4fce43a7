"""The tables of `make faults` fit the package: each fault can be planted, and the tests that should notice it exist."""

import collections
import functools
import re

import pytest

from faults.run import ROOT, Fault, read

FAULTS = read()


@functools.cache
def functions(file: str) -> set[str]:
    return set(re.findall(r"^ *def (\w+)", (ROOT / file).read_text(), re.MULTILINE))


@functools.cache
def everything() -> str:
    """All tests, since a case may have its name from another file."""
    return "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("table", sorted({fault.name.split()[0] for fault in FAULTS}))
def test_every_fault_can_be_planted_and_names_tests_that_exist(table):
    for fault in FAULTS:
        if fault.name.split()[0] == table:
            fault.planted((ROOT / "src/fedhsa" / fault.file).read_text())
            assert fault.tests, fault
            assert fault.why.endswith("."), fault
            for test in fault.tests:
                file, *names = test.split("::")
                missing = {name.split("[")[0] for name in names} - functions(file)
                assert not missing, (fault.name, missing)
            words = set(re.findall(r"\w+", fault.only)) - {"and", "or", "not"}
            assert all(word in everything() for word in words), f"{fault.name}: no test has {words} in its name"


def test_there_are_many_faults_and_none_is_listed_twice():
    assert len(FAULTS) >= 300
    twice = [
        fault for fault, count in collections.Counter((f.file, f.before, f.after) for f in FAULTS).items() if count > 1
    ]
    assert not twice


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("a = 1", "a = 2", "`before` occurs 2 times in a.py, and must occur once"),
        ("c = 1", "c = 2", "`before` occurs 0 times in a.py, and must occur once"),
        ("b = 1", "b = (", "`after` is not valid Python in a.py"),
        ("b = 1", "b = 1  # one", "`after` changes nothing that a.py does"),
    ],
)
def test_a_fault_that_cannot_be_planted_raises(before, after, message):
    with pytest.raises(ValueError, match=message):
        Fault("an 1", "a.py", before, after, "Hurts.", ()).planted("a = 1\na = 1\nb = 1\n")
