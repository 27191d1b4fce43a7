"""Parts of the long tests, of which each landing runs another."""

import itertools
from types import SimpleNamespace

import pytest

import conftest


def kept(names, asked):
    items = [SimpleNamespace(nodeid=name) for name in names]
    away = []
    hook = SimpleNamespace(pytest_deselected=lambda items: away.extend(items))
    conftest.pytest_collection_modifyitems(SimpleNamespace(getoption=lambda _: asked, hook=hook), items)
    assert sorted(item.nodeid for item in (*items, *away)) == sorted(names)
    return [item.nodeid for item in items]


NAMES = [f"tests/theory/test_exact.py::test_a_floor[{i}]" for i in range(200)]


def test_eight_successive_parts_are_all_tests_each_once():
    parts = [kept(NAMES, f"{1026 + k}/8") for k in range(8)]
    assert sorted(itertools.chain(*parts)) == sorted(NAMES)
    assert all(len(part) > 10 for part in parts)


def test_a_test_stays_in_its_part_whatever_other_tests_there_are():
    assert set(kept(NAMES[:50], "3/8")) <= set(kept(NAMES, "3/8"))
    assert kept(NAMES, "3/8") == kept(NAMES, "11/8")


def test_without_the_option_all_tests_run():
    assert kept(NAMES, None) == NAMES


def test_a_failure_names_the_command_that_repeats_it_and_rooms_their_seconds():
    lines = []
    failed = SimpleNamespace(nodeid="tests/theory/test_exact.py::test_a[x y]", duration=1.5)
    passed = SimpleNamespace(nodeid="tests/test_docs.py::test_b", duration=0.25)
    reporter = SimpleNamespace(stats={"failed": [failed], "passed": [passed]}, section=lines.append, line=lines.append)
    conftest.pytest_terminal_summary(reporter)
    assert "     1.5  tests/theory" in lines
    assert "make test-only TESTS='tests/theory/test_exact.py::test_a[x y]'" in lines


@pytest.mark.parametrize("asked", ["8", "1/0", "a/b"])
def test_a_part_that_is_none_is_refused(asked):
    with pytest.raises(pytest.UsageError, match=r"--slice takes K/N, such as 3/8, got"):
        kept(NAMES, asked)
