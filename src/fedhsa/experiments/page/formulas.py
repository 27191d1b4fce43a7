"""Formulas as MathML, from plain text such as `(eta H L)^2 (|e|^2 + sigma^2)`."""

import re
from html import escape, unescape

GREEK_NAMES = "alpha beta gamma delta epsilon eta theta kappa lambda mu xi pi rho sigma tau"
GREEK = {name: unescape(f"&{name};") for name in GREEK_NAMES.split()}
SIGNS = {"<=": "≤", ">=": "≥", "!=": "≠", "->": "→", "-": "\u2212", "'": "\u2032", "...": "…"}
TOKENS = re.compile(r"\d+(?:\.\d+)?|[A-Za-z\u0370-\u03ff]+|<=|>=|!=|->|\.\.\.|\S")


def mathml(text: str) -> str:
    """Returns a formula as a `math` element; one sign or an expression in brackets follows `^` and `_`.

    Letters are variables, also in a group of capitals (`MHT`); other words are functions, such as `log`. The names of
    Greek letters become these letters, `_bar` puts a bar on the element before it, and `sqrt(...)` is a root.

    !!! example
        >>> mathml("L_i^2")
        '<math><msubsup><mi>L</mi><mi>i</mi><mn>2</mn></msubsup></math>'
        >>> mathml("eta <= 1/L")
        '<math><mi>η</mi><mo>≤</mo><mn>1</mn><mo>/</mo><mi>L</mi></math>'
    """
    parts, rest = _row(TOKENS.findall(text), None)
    while rest:  # an unmatched closing bracket is an ordinary sign
        more, rest = _row(rest[1:], None)
        parts += [_sign(")"), *more]
    return f"<math>{''.join(parts)}</math>"


def _row(tokens: list[str], end: str | None) -> tuple[list[str], list[str]]:
    """Returns the parts up to the closing sign, and the tokens from that sign on."""
    parts: list[str] = []
    while tokens and tokens[0] != end and tokens[0] != ")":
        base, tokens = _scripted(tokens)
        parts += base
    return parts, tokens


def _scripted(tokens: list[str]) -> tuple[list[str], list[str]]:
    """Returns the first element with the indices and powers that follow it, and the remaining tokens."""
    *before, base, tokens = _atoms(tokens)
    below = above = None
    while tokens[:1] and tokens[0] in ("_", "^", "*") and (tokens[0] == "*" or len(tokens) > 1):
        sign, tokens = tokens[0], tokens[1:]
        if sign == "*":
            above = "<mo>⋆</mo>"
        elif sign == "_" and tokens[0] == "bar":
            base, tokens = f'<mover accent="true">{base}<mo>¯</mo></mover>', tokens[1:]
        elif sign == "_":
            below, tokens = _script(tokens)
        else:
            above, tokens = _script(tokens)
    if below and above:
        base = f"<msubsup>{base}{below}{above}</msubsup>"
    elif below or above:
        name = "msub" if below else "msup"
        base = f"<{name}>{base}{below or above}</{name}>"
    return [*before, base], tokens


def _script(tokens: list[str]) -> tuple[str, list[str]]:
    """Returns an index or a power: one sign, a signed number, or the content of brackets without the brackets."""
    if tokens[0] == "(":
        inner, rest = _row(tokens[1:], ")")
        return _together(inner), rest[1:]
    if tokens[0] == "-" and len(tokens) > 1:
        inner, rest = _script(tokens[1:])
        return f"<mrow>{_sign('-')}{inner}</mrow>", rest
    *before, base, rest = _atoms(tokens)
    return _together([*before, base]), rest


def _atoms(tokens: list[str]) -> tuple:
    """Returns the first elements, of which only the last takes scripts, and the tokens after them."""
    token, rest = tokens[0], tokens[1:]
    if token == "sqrt" and rest[:1] == ["("]:
        inner, rest = _row(rest[1:], ")")
        return f"<msqrt>{''.join(inner)}</msqrt>", rest[1:]
    if token == "(" or (token == "|" and "|" in rest):
        end = ")" if token == "(" else "|"
        inner, rest = _row(rest, end)
        return f"<mrow>{_sign(token)}{''.join(inner)}{_sign(end)}</mrow>", rest[1:]
    if token in GREEK:
        return f"<mi>{GREEK[token]}</mi>", rest
    if token[0].isdigit():
        return f"<mn>{token}</mn>", rest
    if token[0].isalpha():
        return *(f"<mi>{letter}</mi>" for letter in (token if token.isupper() else [token])), rest
    return _sign(token), rest


def _together(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"<mrow>{''.join(parts)}</mrow>"


def _sign(token: str) -> str:
    still = ' stretchy="false"' if token in "()|" else ""
    return f"<mo{still}>{escape(SIGNS.get(token, token), quote=False)}</mo>"
