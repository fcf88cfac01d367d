"""The graph of a pipeline in a record: boxes and lines as they are drawn, with their texts."""

from __future__ import annotations

import msgspec

#: Maximum number of steps that are drawn.
MAX_NODES = 150


class GraphNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as a box.

    Attributes
    ----------
    x, y
        Its left upper corner, in CSS pixels of the drawing.
    title, text
        Its name, and the line below it: state and time.
    hint
        All that is known of it, for whoever points at it.
    state
        A state of a run, ``waiting`` or ``skipped``.
    reused
        Whether an earlier result is used.
    critical
        Whether it is on the longest way in time through the graph.
    handle
        Of its run; empty before it has one.
    """

    title: str
    x: float
    y: float
    text: str = ""
    hint: str = ""
    state: str = ""
    reused: bool = False
    critical: bool = False
    handle: str = ""


class GraphEdge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step takes of another one, as a line.

    Attributes
    ----------
    path
        The line, as the attribute ``d`` of SVG.
    hint
        What travels, for whoever points at it.
    critical
        Whether both of its steps are on the longest way, one after the other.
    """

    path: str
    hint: str = ""
    critical: bool = False


class RunGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of a pipeline.

    Attributes
    ----------
    width, height
        Of the drawing, in CSS pixels.
    box_width, box_height
        Of a box.
    nodes, edges
        Empty for a pipeline of more steps than :data:`MAX_NODES`.
    lines
        The graph as text, one line for each step.
    sentence
        Summary of the steps.
    message
        What the pipeline waits for, or why it ended; one sentence.
    """

    width: float = 0.0
    height: float = 0.0
    box_width: float = 0.0
    box_height: float = 0.0
    nodes: tuple[GraphNode, ...] = ()
    edges: tuple[GraphEdge, ...] = ()
    lines: tuple[str, ...] = ()
    sentence: str = ""
    message: str = ""
