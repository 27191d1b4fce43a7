"""Brings the pages up to date: runs their code and writes what it prints where they show it.

    python tests/update_docs.py                    # all pages
    python tests/update_docs.py docs/theory/predict.md     # some of them

Look at the difference before you commit it: the text around a number that has changed may have to change, too.
"""

import pathlib
import sys
import tempfile

import conftest  # noqa: F401  # the same strict arithmetic as in the tests
import pages


def main(names: list[str]) -> int:
    """Runs the pages and renews them; gives the exit code, 1 where something is left for a reader to change."""
    left = 0
    for page in [pathlib.Path(name).resolve() for name in names] or pages.PAGES:
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
