"""The graph as a part of a record; an :class:`~jupyter_amltrain.kernel.record_parts.EntryPart`."""

from __future__ import annotations

import functools
import html

import msgspec

from jupyter_amltrain.errors import AmlTrainError
from jupyter_amltrain.kernel.store import Entry
from jupyter_amltrain.pipelines.graph import graph_of
from jupyter_amltrain.pipelines.pipeline_file import planned_step
from jupyter_amltrain.pipelines.pipeline_job import KIND
from jupyter_amltrain.pipelines.plan import PipelinePlan, PlannedStep, ordered
from jupyter_amltrain.schema import az_yaml
from jupyter_amltrain.schema.run_graph import GraphNode, RunGraph

#: Line and fill of a box by its state, readable on light and dark pages.
_COLORS = {
    "completed": ("#2e7d32", "#e8f5e9"),
    "running": ("#1565c0", "#e3f2fd"),
    "finalizing": ("#1565c0", "#e3f2fd"),
    "preparing": ("#6a1b9a", "#f3e5f5"),
    "queued": ("#6a1b9a", "#f3e5f5"),
    "failed": ("#c62828", "#ffebee"),
    "lost": ("#c62828", "#ffebee"),
    "canceled": ("#8d6e63", "#efebe9"),
}
_GRAY = ("#8a8f98", "#f1f2f4")
_INK = "#1f2328"


class GraphPart:
    """The graph of a pipeline in its record."""

    name = "graph"

    def of(self, entry: Entry) -> RunGraph | None:
        """Return the graph; ``None`` for any other run."""
        spec = entry.run.spec
        if spec.job_type == KIND:  # a service runs the file, and tells the states of its steps
            steps = file_steps(spec.cell, entry.run.target)
            return graph_of(steps, entry.children) if steps else None
        if spec.driver is None or spec.driver.kind != KIND:
            return None
        return graph_of(_plan(msgspec.json.encode(spec.driver.plan)).steps, entry.children)

    def text(self, shown: RunGraph) -> list[str]:
        """Return the summary and a line for each step."""
        return [shown.sentence, *([shown.message] if shown.message else []), *(f"  {line}" for line in shown.lines)]

    def html(self, shown: RunGraph) -> str:
        """Return the drawing, with the text where there is none."""
        title = f"<div>{html.escape(shown.sentence)} {html.escape(shown.message)}</div>"
        if not shown.nodes:
            return f"{title}<pre>{html.escape(chr(10).join(shown.lines))}</pre>"
        return f'{title}<div style="overflow-x: auto">{svg_of(shown)}</div>'


PART = GraphPart()


@functools.lru_cache(maxsize=16)
def _plan(data: bytes) -> PipelinePlan:
    return msgspec.json.decode(data, type=PipelinePlan)


@functools.lru_cache(maxsize=16)
def file_steps(text: str, target: str) -> tuple[PlannedStep, ...]:
    """Return the steps of a file of ``az ml`` and what they take of each other; none of a file that has no order."""
    try:
        jobs = az_yaml.parse(text).doc.get("jobs")
        return ordered([planned_step(str(name), node, target) for name, node in jobs.items()] if jobs else [])
    except (AmlTrainError, AttributeError):  # the service has taken it: only the drawing is missing
        return ()


def svg_of(graph: RunGraph) -> str:
    """Return the drawing as SVG with its colors, for pages without our style."""
    size = f'width="{graph.width:g}" height="{graph.height:g}" viewBox="0 0 {graph.width:g} {graph.height:g}"'
    lines = "".join(
        f'<path d="{edge.path}" fill="none" stroke="{"#e65100" if edge.critical else _GRAY[0]}" '
        f'stroke-width="{2.5 if edge.critical else 1.5}"><title>{html.escape(edge.hint)}</title></path>'
        for edge in graph.edges
    )
    boxes = "".join(_box(node, graph.box_width, graph.box_height) for node in graph.nodes)
    label = html.escape(graph.sentence)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">{lines}{boxes}</svg>'


def _box(node: GraphNode, width: float, height: float) -> str:
    line, fill = _GRAY if node.reused else _COLORS.get(node.state, _GRAY)
    dashes = ' stroke-dasharray="4 3"' if node.reused or node.state in ("waiting", "skipped") else ""
    heavy = 2.5 if node.critical else 1.2
    left, text = node.x + 10, html.escape(node.text)
    font = 'font-family="system-ui, sans-serif"'
    return (
        f"<g><title>{html.escape(node.hint)}</title>"
        f'<rect x="{node.x:g}" y="{node.y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="{line}" stroke-width="{heavy}"{dashes}/>'
        f'<text x="{left:g}" y="{node.y + 18:g}" {font} font-size="13" font-weight="600" fill="{_INK}">'
        f"{html.escape(node.title)}</text>"
        f'<text x="{left:g}" y="{node.y + 35:g}" {font} font-size="11" fill="{line}">{text}</text></g>'
    )
