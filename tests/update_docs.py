"""Brings the pages up to date: writes what their code prints, and measured numbers, where they show them.

    python tests/update_docs.py                            # all pages
    python tests/update_docs.py docs/theory/predict.md     # some of them
    python tests/update_docs.py --numbers results          # only the numbers of the studies that were run into results/
    python tests/update_docs.py --numbers runs             # only those of comparisons that were run into runs/compare/
    python tests/update_docs.py --numbers benchmarks/results    # only the tables of benchmarks
    python tests/update_docs.py examples/control.py        # run an example, and only the numbers that it prints

The numbers in the text come from `docs/numbers/`, which `--numbers` writes from what `fedhsa reproduce` and `fedhsa
compare` have left, and which the examples are run for.
`--as-they-are` takes outcomes of other code too: use it only if what has changed since cannot change a number.

Look at the difference before you commit it: the text around a number that has changed may have to change, too.
"""

import argparse
import pathlib
import sys
import tempfile

import conftest  # noqa: F401  # the same strict arithmetic as in the tests
import pages
import values


def main(arguments: list[str]) -> int:
    """Renews the pages; gives the exit code, 1 where something is left for a reader to change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="pages, examples, or studies after --numbers; default: all pages")
    parser.add_argument("--numbers", metavar="RESULTS", type=pathlib.Path, help="the folder of studies or comparisons")
    parser.add_argument("--as-they-are", action="store_true", help="also outcomes of code that has changed since")
    settings = parser.parse_args(arguments)
    if settings.numbers is not None:
        results = settings.numbers.resolve()
        stored = [*sorted(results.rglob("data.npz")), *sorted(results.glob("compare/*/manifest.json"))]
        stored = [str(path.parent.relative_to(results)) for path in stored]
        if results.parent.name == "benchmarks":
            stored = [f"benchmarks/{path.stem}" for path in sorted(results.glob("*.json"))]
        if not (settings.names or stored):
            parser.error(f"there are no results in {results}: run the study, comparison or benchmark first")
        for name in settings.names or stored:
            print(values.write(name, results, settings.as_they_are), flush=True)
        return renew_numbers(pages.PAGES)
    if examples := [name for name in settings.names if name.endswith(".py")]:
        for name in examples:
            print(values.write_example(name.removesuffix(".py")), flush=True)
        return renew_numbers(pages.PAGES)
    wanted = [pathlib.Path(name).resolve() for name in settings.names] or pages.PAGES
    return renew_numbers(wanted) | run_code(wanted)


def renew_numbers(wanted: list[pathlib.Path]) -> int:
    """Writes the numbers of the files into the text of pages."""
    left = 0
    for page in wanted:
        before, problems = page.read_text(), []
        after = values.renewed(before, problems)
        left |= bool(problems)
        print("".join(f"{pages.name(page)}, {problem}\n" for problem in problems), end="")
        if after != before:
            page.write_text(after)
            print(f"{pages.name(page)}: numbers renewed", flush=True)
    return left


def run_code(wanted: list[pathlib.Path]) -> int:
    """Runs the pages and writes what they print."""
    left = 0
    for page in wanted:
        with tempfile.TemporaryDirectory() as folder:
            try:
                blocks = pages.run(page, pathlib.Path(folder).resolve())
            except Exception as error:
                print(f"{pages.name(page)} does not run: {type(error).__name__}: {error}")
                left = 1
                continue
        changed = pages.renew(page, blocks)
        print(f"{pages.name(page)}: {'renewed' if changed else 'up to date'}", flush=True)
    return left


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
