"""Makes `docs/reference/settings.md` of the settings there are: `python -m tests.docs.settings_page`."""

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import pairwise

from saga.configuration.settings import OTHERS, Settings, all_options, known_settings
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "settings.md"
FLAGS = {"broker": "`--broker`", "store": "`--store`"}
SECTIONS: dict[str, Callable[[str], bool]] = {
    "Log and stores": lambda name: name in ("broker", "store", "store_durability"),
    "Kafka": lambda name: name.startswith("kafka_"),
    "Couchbase": lambda name: name.startswith("couchbase_"),
    "Schema registry": lambda name: name.startswith("registry"),
    "Each process": lambda _: True,
}
KINDS = {
    field.name: kind
    for kind in (Settings, *(options.kind for options in all_options()))
    for field in fields(kind)
    if field.name != "options"
}
"""The class of each setting."""
TABLE = "| variable | what it is | what to give | default | flag |\n|---|---|---|---|---|"
HEAD = """# Settings

Made from the settings themselves by `make reference`; a test compares them.

A setting is given as a variable, as below; or by a line of the TOML file that `SAGA_CONFIG` names, in small letters
and without `SAGA_`: `drain_s = 30`; or, where a flag is named, by that flag of a command. A flag wins over a variable,
and a variable over the file. **What is empty or blank is not given**, in each of them: an unset variable of a compose
file overrides nothing.

All settings are read and checked when a command starts, and all problems are reported at once, with exit code 2. A name
that begins with `SAGA_` and is no setting is a problem too; only what Kubernetes
[gives to pods](../guides/deploying/kubernetes.md#on-kubernetes) for a Service called `saga` or `saga-...` is passed
over. What holds a password, a key or a token is never shown, nor an address with a user or a password in it, which is
refused.
"""


def page() -> str:
    """The whole page."""
    left = list(KINDS)
    parts = [HEAD]
    for title, belongs in SECTIONS.items():
        here = [name for name in left if belongs(name)]
        left = [name for name in left if name not in here]
        rows = "\n".join(map(_row, here))
        parts.append(f"## {title}\n\n{TABLE}\n{rows}\n")
    others = "\n".join(f"| `{name}` | {_cell(meaning)} |" for name, meaning in OTHERS.items())
    parts.append(f"## Only as variables\n\n| variable | what it is |\n|---|---|\n{others}\n")
    return "\n".join(parts)


def meanings() -> dict[str, str]:
    """The description of each setting."""
    return dict(_described())


def default_of(name: str) -> str:
    """The default of a setting, as it would be given."""
    value = getattr(KINDS[name](), name)
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _row(name: str) -> str:
    variable, default = f"SAGA_{name.upper()}", default_of(name)
    cells = (
        f"`{variable}`",
        _cell(meanings()[name]),
        _cell(known_settings()[variable].takes),
        f"`{default}`" if default else "not given",
        FLAGS.get(name, ""),
    )
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _described() -> Iterator[tuple[str, str]]:
    """Each field of the classes with the text behind it."""
    for kind in dict.fromkeys(KINDS.values()):
        (settings,) = ast.parse(inspect.getsource(kind)).body
        assert isinstance(settings, ast.ClassDef)
        for field, text in pairwise(settings.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                    yield name, meaning


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
