"""`fedhsa completion`: a script with which a shell completes commands, flags and names."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

from rich.console import Console

from .._check import nearest
from .errors import UsageError

SHELLS = ("bash", "zsh")
HELP = """\
usage: fedhsa completion bash|zsh

Prints a script with which the shell completes commands, flags, problems,
algorithms and examples. To install it:

  bash   mkdir -p ~/.local/share/bash-completion/completions
         fedhsa completion bash > ~/.local/share/bash-completion/completions/fedhsa
  zsh    fedhsa completion zsh > ~/.fedhsa-completion.zsh
         and add `source ~/.fedhsa-completion.zsh` to ~/.zshrc, after compinit

It takes effect in a new shell. Run the command again after an update.
"""
MORE = {"": ["--version"], " examples copy": ["--to", "--force"]}
"""The flags of commands whose settings are not a dataclass."""
FUNCTION = """\
_fedhsa() {
  local current=${COMP_WORDS[COMP_CWORD]} path="" flag="" word
  COMPREPLY=()
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in
      -*) flag=${word%%=*} ;;
      *) if [[ -z $flag && -n $(_fedhsa_words "$path $word") ]]; then path="$path $word"; fi ;;
    esac
  done
  local words=""
  if [[ $current == -* ]]; then
    words=$(_fedhsa_flags "$path")
  elif [[ -n $flag ]]; then
    words=$(_fedhsa_choices "$flag")
  else
    words=$(_fedhsa_words "$path")
    if [[ $words == . ]]; then words=""; fi
  fi
  while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -W "$words" -- "$current")
}
complete -o default -F _fedhsa fedhsa
"""


def main(arguments: list[str], console: Console) -> int:
    """Runs `fedhsa completion`; returns the exit code."""
    shell = " ".join(arguments)
    if shell not in SHELLS:
        raise UsageError(f"fedhsa completion takes one of {', '.join(SHELLS)}, got {shell!r}.{nearest(shell, SHELLS)}")
    print(script(shell), end="")
    return 0


def script(shell: str) -> str:
    """Returns the script for this shell. The script for zsh is the script for bash, which zsh can read."""
    tables: dict[str, dict[str, list[str]]] = {"words": {}, "flags": {}, "choices": {}}
    for path, words, flags, choices in _tables("", _commands()):
        tables["words"][path] = words or ["."]  # so that a command without words is also known
        tables["flags"][path] = [*flags, *MORE.get(path, ()), "--help"]
        for flag, names in choices.items():  # a flag of several commands has the same choices, or a subset of them
            tables["choices"][flag] = [*dict.fromkeys([*tables["choices"].get(flag, []), *names])]
    head = "# Completion of the command fedhsa. `fedhsa completion` made it.\n"
    head += "autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else ""
    for name, table in tables.items():
        cases = "".join(f'    "{key}") echo "{" ".join(words)}" ;;\n' for key, words in table.items())
        head += f'_fedhsa_{name}() {{\n  case "$1" in\n{cases}  esac\n}}\n'
    return head + FUNCTION


def _commands() -> dict[str, Any]:
    """Returns the commands: each has its settings, further commands, or a list of words."""
    from . import COMMANDS, deploy_settings, doctor, examples, init, keys, lab, listing, new, reproduce, settings

    forms = {form: kind for form, (kind, _) in keys.FORMS.items() if form}
    own = {"init": init.InitSettings, "doctor": doctor.DoctorSettings, "keys": forms}
    known = {
        **settings.COMMANDS,
        "reproduce": reproduce.ReproduceSettings,
        "deploy": {**deploy_settings.COMMANDS, **own},
        "lab": lab.LabSettings,
        "new": list(new.KINDS),
        "list": list(listing.USAGE),
        "examples": {"list": [], "copy": [*examples.names()]},
        "completion": list(SHELLS),
    }
    return {name: known.get(name, []) for name in COMMANDS}


def _tables(path: str, kind: Any) -> Iterator[tuple[str, list[str], list[str], dict[str, list[str]]]]:
    """Returns for each command its words, its flags, and the choices of these flags."""
    if isinstance(kind, Mapping):
        yield path, [*kind], [], {}
        for name, inner in kind.items():
            yield from _tables(f"{path} {name}", inner)
    elif isinstance(kind, list):
        yield path, kind, [], {}
    else:
        yield path, *_of_settings(kind)


def _of_settings(kind: type) -> tuple[list[str], list[str], dict[str, list[str]]]:
    from . import index
    from .parsing import _is_positional

    names = index.read()
    words: list[str] = []
    flags: list[str] = []
    choices: dict[str, list[str]] = {}
    hints = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        found = _choices(hints[field.name])
        if field.name == "problem":
            words += names["problems"]
        elif _is_positional(hints[field.name]):
            words += found
        else:
            flag = "--" + field.name.rstrip("_").replace("_", "-")
            flags += [flag, f"--no-{flag[2:]}"] if field.type is bool else [flag]
            if field.name == "algorithm":
                choices[flag] = [*names["algorithms"], *names["wrappers"]]
            elif found:
                choices[flag] = found
    return words, flags, choices


def _choices(hint: Any) -> list[str]:
    """Returns the words that a flag takes if the help lists them: `float64|float32`."""
    metavars = [getattr(marker, "metavar", None) for marker in get_args(hint)[1:]]
    text = next((text for text in metavars if text), "").strip("[]").removesuffix(" ...")
    words = text.split("|")
    return words if len(words) > 1 and all(re.fullmatch(r"[a-z0-9-]+", word) for word in words) else []
