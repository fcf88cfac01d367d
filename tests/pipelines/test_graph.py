"""The graph in a record: places, states, the longest way, text and drawing."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec

from jupyter_amltrain.pipelines.graph import graph_of
from jupyter_amltrain.pipelines.graph_part import PART, svg_of
from jupyter_amltrain.pipelines.plan import Link, PlannedStep, ordered
from jupyter_amltrain.schema.child_run import ChildRun, ChildRuns
from jupyter_amltrain.schema.run_graph import MAX_NODES, RunGraph

STEPS = ordered(
    [
        PlannedStep(name="prep", target="local"),
        PlannedStep(name="left", target="local", links={"data": Link(step="prep", output="data")}),
        PlannedStep(name="right", target="box", links={"data": Link(step="prep", output="data")}),
        PlannedStep(name="join", target="local", after=("left", "right")),
    ]
)


def row(name: str, state: str = "completed", begin: float = 0.0, end: float | None = 1.0, **more: object) -> ChildRun:
    return msgspec.convert({"id": name, "name": name, "state": state, "started": begin, "ended": end, **more}, ChildRun)


def test_longest_way_in_time_is_marked() -> None:
    rows = ChildRuns(runs=(row("prep", end=1), row("left", begin=1, end=2), row("right", begin=1, end=5)))
    graph = graph_of(STEPS, rows, now=9)
    critical = {node.title for node in graph.nodes if node.critical}
    assert critical == {"prep", "right"} and sum(edge.critical for edge in graph.edges) == 1
    assert "prep -> right" in graph.sentence and "1 waiting" in graph.sentence


def test_running_step_counts_until_now_and_reused_one_takes_no_time() -> None:
    rows = ChildRuns(runs=(row("prep", reused=True, handle="local/x"), row("left", "running", 1, None)))
    graph = graph_of(STEPS, rows, now=61)
    nodes = {node.title: node for node in graph.nodes}
    assert nodes["prep"].reused and nodes["prep"].text == "reused" and not nodes["prep"].critical
    assert nodes["left"].critical and "1 min" in nodes["left"].text
    assert any("local/x" in line for line in graph.lines)


def test_boxes_do_not_overlap_and_edges_go_from_left_to_right() -> None:
    wide = [PlannedStep(name=f"s{i}", target="local", after=(f"s{i // 3}",) if i else ()) for i in range(40)]
    graph = graph_of(ordered(wide), ChildRuns())
    places = {(node.x, node.y) for node in graph.nodes}
    assert len(places) == 40
    for x, y in places:
        assert all(x == u or abs(x - u) >= graph.box_width for u, _ in places)
        assert all((x, y) == (u, v) or x != u or abs(y - v) >= graph.box_height for u, v in places)
        assert x + graph.box_width <= graph.width and y + graph.box_height <= graph.height


def test_drawing_is_xml_with_texts_escaped() -> None:
    rows = ChildRuns(runs=(row("prep", "failed", detail="<script>alert(1)</script> & more"),))
    root = ET.fromstring(svg_of(graph_of(STEPS, rows)))
    assert len(root.findall(".//{*}rect")) == 4 and len(root.findall("{*}path")) == 4
    assert "<script>" in "".join(root.itertext())


def test_large_graph_is_text_only() -> None:
    many = ordered([PlannedStep(name=f"s{i}", target="local") for i in range(MAX_NODES + 1)])
    graph = graph_of(many, ChildRuns())
    assert not graph.nodes and graph.lines[-1].startswith("and ") and "<svg" not in PART.html(graph)
    assert len(msgspec.json.encode(graph)) < 20_000


def test_parts_of_split_step_are_counted() -> None:
    rows = ChildRuns(runs=(row("prep", "running", 0, None), row("prep:0"), row("prep:1", "running", 0, None)))
    assert "1/2" in next(node.text for node in graph_of(STEPS, rows, now=1).nodes if node.title == "prep")


def test_text_has_summary_message_and_each_step() -> None:
    graph: RunGraph = graph_of(STEPS, ChildRuns(message="Step prep waits for box."))
    text = "\n".join(PART.text(graph))
    assert "4 steps" in text and "waits for box" in text and all(step.name in text for step in STEPS)
