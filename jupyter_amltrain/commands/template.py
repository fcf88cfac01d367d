"""``submit --template``: a ready cell for a framework, from the files in ``templates/``."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from typing import NamedTuple

from jupyter_amltrain.commands.registry import Context, Result
from jupyter_amltrain.errors import CommandError
from jupyter_amltrain.text import close_matches, did_you_mean

_FOLDER = Path(__file__).parent.parent / "templates"
#: Template -> packages that pip installs for it, by the module that it imports.
TEMPLATES: dict[str, dict[str, str]] = {
    "pytorch": {"torch": "torch"},
    "tensorflow": {"tensorflow": "tensorflow"},
    "keras": {"keras": "keras tensorflow", "numpy": "numpy"},
    "sklearn": {"sklearn": "scikit-learn", "joblib": "joblib"},
    "lightgbm": {"lightgbm": "lightgbm", "numpy": "numpy"},
    "ray-rllib": {"ray": "ray[rllib] torch"},
}
#: Beginning of the first line, a comment with the magic's line.
_COMMENT = "# "


class Template(NamedTuple):
    """A cell for a framework.

    Attributes
    ----------
    text
        Python code; its first line is the magic's line as a comment.
    packages
        Names for pip by module.
    """

    name: str
    text: str
    packages: dict[str, str]

    @property
    def cell(self) -> str:
        """The text of a notebook's cell."""
        return self.text.removeprefix(_COMMENT)

    @property
    def modules(self) -> set[str]:
        """Top-level modules that the code imports."""
        found = set()
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
        return found

    def missing(self) -> list[str]:
        """Return the names for pip of packages that this interpreter does not have."""
        needed = {"mlflow": "mlflow", **self.packages}
        names = [name for module, name in needed.items() if importlib.util.find_spec(module) is None]
        return list(dict.fromkeys(" ".join(names).split()))


def template_of(name: str) -> Template:
    """Return a template.

    Raises
    ------
    CommandError
        No template has this name.
    """
    if name not in TEMPLATES:
        raise CommandError(
            f"--template: there is no template {name[:80]!r}.",
            hint=did_you_mean(close_matches(name, TEMPLATES, 1), f"Templates: {', '.join(TEMPLATES)}."),
            code="template.unknown",
            field="template",
        )
    text = (_FOLDER / f"{name.replace('-', '_')}.py").read_text(encoding="utf-8")
    return Template(name, text, TEMPLATES[name])


def show(name: str, context: Context) -> Result:
    """Insert a template as the next cell of a notebook; elsewhere return its text."""
    template = template_of(name)
    missing = template.missing()
    notice = (
        f"Not installed here: {', '.join(missing)}. Install with: %pip install {' '.join(missing)}" if missing else ""
    )
    if context.insert_cell is not None:
        context.insert_cell(template.cell)
        return Result(f"Inserted the {name} template as the next cell. Run that cell to submit it.", notice=notice)
    # In a shell it is a file: amltrain submit --template sklearn > train.py
    return Result(template.cell if context.magic else template.text, notice=notice, verbatim=True)
