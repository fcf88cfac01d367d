"""A run as HTML for readers without the labextension."""

from __future__ import annotations

import base64
from types import SimpleNamespace

from jupyter_amltrain.output.display_html import display_html
from jupyter_amltrain.output.mime import bundle_of
from jupyter_amltrain.output.run_html import LOG_LINES, alt_text, run_html
from jupyter_amltrain.schema.record import LogTail, MetricSeries, RunDisplay, RunPicture

from .test_text_view import record

PICTURE = SimpleNamespace(png=b"\x89PNG", width=640, height=200)
LOSS = {"loss": MetricSeries(step=(0, 1), value=(1.0, 0.5), last=0.5, n=2)}


def test_html_shows_picture_with_alternative_text_and_log() -> None:
    lines = "\n".join(f"epoch {i} <done>" for i in range(50))
    run = record(state="completed", done=True, metrics=LOSS, log=LogTail(tail=f"\x1b[31m{lines}\x1b[0m\n", bytes=900))
    page = run_html(run, PICTURE)
    assert base64.b64encode(PICTURE.png).decode() in page and alt_text(run) in page and "loss 0.5" in alt_text(run)
    assert page.count("&lt;done&gt;") == LOG_LINES and "\x1b" not in page and "<done>" not in page
    assert page.index("<img") < page.index("epoch 49")


def test_html_of_failed_run_begins_with_error_and_log() -> None:
    run = record(state="failed", done=True, error="Raised ValueError: no", log=LogTail(tail="Traceback\n", bytes=10))
    page = run_html(run, PICTURE)
    assert page.index("Raised ValueError") < page.index("Traceback") < page.index("<img")


def test_html_shows_thumbnails_of_figures() -> None:
    pictures = (
        RunPicture(path="p/1.png", name="1.png", title='a "title"', thumbnail="data:image/png;base64,AA=="),
        RunPicture(path="p/2.png", name="2.png", thumbnail="javascript:alert(1)"),
    )
    page = run_html(record(state="completed", done=True, pictures=pictures), None)
    assert 'src="data:image/png;base64,AA=="' in page and "a &quot;title&quot;" in page and "javascript" not in page


def test_html_without_picture_shows_values() -> None:
    assert "loss = 0.5" in run_html(record(state="completed", done=True, metrics=LOSS), None)


def test_bundle_has_html_only_of_ended_run() -> None:
    assert "text/html" not in bundle_of(record())[0]
    bundle, metadata = bundle_of(record(state="completed", done=True), PICTURE)
    assert "text/html" in bundle and metadata["image/png"]["alt"]
    assert "text/html" not in bundle_of(record(kind="monitor", done=True))[0]


def test_html_of_markdown_is_drawn_and_safe() -> None:
    text = "# Title\n\n|a|\n|-|\n|**1**|\n\n$x^2$ <script>alert(1)</script> ![far](https://x.test/i.png)"
    page = display_html(RunDisplay(number=1, data={"text/markdown": text}))
    assert "<h1>Title</h1>" in page and "<strong>1</strong>" in page and "x^2" in page
    assert "<script" not in page and "<img" not in page


def test_html_of_latex_is_outside_of_preformatted_text() -> None:
    page = display_html(RunDisplay(number=1, data={"text/latex": "$a < b$"}))
    assert "$a &lt; b$" in page and "<pre" not in page  # MathJax leaves out preformatted text


def test_html_of_image_has_its_text() -> None:
    page = display_html(RunDisplay(number=1, data={"image/png": "AA=="}, title='a "box"'))
    assert 'alt="a &quot;box&quot;"' in page
