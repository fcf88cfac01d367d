"""The oldest azure-ai-ml that is supported, beside the installed one: a folder for ``PYTHONPATH``."""

from __future__ import annotations

from pathlib import Path

from tools.environment import PYTHON, ROOT, must, say

VERSION = "1.33.0"


def place(version: str = VERSION) -> Path:
    """Where that version lies, or would."""
    return ROOT / "build" / f"azure-ai-ml-{version}"


def ensure() -> Path:
    """Install it when it is not there; its dependencies are those of the installed one."""
    found = place()
    if not (found / "azure" / "ai" / "ml" / "__init__.py").exists():
        say(f"installing azure-ai-ml {VERSION} into build/")
        pip: list[str | Path] = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        must([*pip, "--target", found, f"azure-ai-ml=={VERSION}"], "Cannot install azure-ai-ml", quiet=True)
    return found
