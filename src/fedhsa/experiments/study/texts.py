"""Many texts by name, as they are read: the statements of claims, and our choices where the paper is silent."""

import re


def paragraphs(text: str) -> dict[str, str]:
    """Returns texts by name. A paragraph begins with `name: `, and its further lines are indented.

    !!! example
        >>> paragraphs("first: It is short.\\nsecond: It is\\n    longer.")
        {'first': 'It is short.', 'second': 'It is longer.'}
    """
    parts = (" ".join(part.split()).partition(": ") for part in re.split(r"\n(?=\S)", text.strip()))
    return {name: words for name, _, words in parts}
