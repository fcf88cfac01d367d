"""Accessibility rules of axe-core, checked on a part of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

_SCRIPT = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"

_SERIOUS = ("serious", "critical")

_RUN = """async selector => {
  const found = await axe.run(selector, { resultTypes: ['violations'] });
  return found.violations.map(v => ({
    id: v.id,
    impact: v.impact,
    help: v.help,
    nodes: v.nodes.map(n => ({ target: n.target.join(' '), html: n.html.slice(0, 200) }))
  }));
}"""


def axe(page: Page, selector: str, *, not_ours: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the serious and critical violations in the nodes that match `selector`.

    Parameters
    ----------
    not_ours
        Beginnings of the HTML of nodes that JupyterLab draws, e.g. ``<jp-button``: these do not count.
    """
    if not page.locator(selector).count():
        raise AssertionError(f"nothing on the page matches {selector}")
    if not page.evaluate("() => 'axe' in window"):
        # As an expression: a script tag would take part in the page's own module loader.
        page.evaluate(f"() => {{ const module = undefined, define = undefined; {_SCRIPT.read_text()} }}")
    violations: list[dict[str, Any]] = page.evaluate(_RUN, selector)
    serious = []
    for violation in violations:
        nodes = (
            [node for node in violation["nodes"] if not node["html"].startswith(not_ours)]
            if not_ours
            else violation["nodes"]
        )
        if violation["impact"] in _SERIOUS and nodes:
            serious.append({**violation, "nodes": nodes})
    return serious
