"""Forms of displayed values from files that may hold anything: safe, bounded, and honest about what they are."""

from __future__ import annotations

import base64
import json
import re
import time
from typing import Any

import pandas as pd
import pytest

from jupyter_amltrain.kernel.display_forms import MAX_WHOLE_CHARS, Forms, forms_of
from jupyter_amltrain.kernel.safe_html import safe_html
from tests.tracking.test_thumbnails import image


def file(data: Any, **more: Any) -> bytes:
    return json.dumps({"version": 1, "data": data, "metadata": {}, **more}).encode()


def forms(data: Any, **more: Any) -> dict[str, Any]:
    result = forms_of(file(data, **more))
    return result.data if result else {}


PNG = base64.b64encode(image(size=(4, 3))).decode()


def test_table_keeps_its_structure_and_styles_that_stay_inside() -> None:
    text = (
        '<div><style scoped>.dataframe td {x: y}</style><table border="1" class="dataframe"><thead><tr><th colspan=2>'
        "a</th></tr></thead><tbody><tr><td style='color: red; position: fixed'>1 &lt; 2</td></tr></tbody></table></div>"
    )
    result = safe_html(text) or ""
    assert '<table border="1" class="dataframe">' in result and 'colspan="2"' in result and "1 &lt; 2" in result
    assert "color: red" in result.replace(":red", ": red") and "position" not in result and "{x: y}" not in result


def test_styled_table_of_pandas_keeps_its_colors() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    styled = frame.style.highlight_max(color="gold").set_properties(**{"font-weight": "bold"})
    text = safe_html(styled._repr_html_()) or ""
    assert (
        text.replace(" ", "").count("background-color:gold") == 2 and text.count("bold") == 4 and "<style" not in text
    )


def test_styled_table_of_pandas_keeps_bars_caption_and_styles_of_table() -> None:
    styled = pd.DataFrame({"a": [1, 2]}).style.bar(color="#d65f5f").set_caption("Legs")
    header = {"selector": "thead th", "props": "background-color: #ccd; position: fixed"}
    text = safe_html(styled.set_table_styles([header, {"selector": "caption", "props": "color: red"}]).to_html()) or ""
    assert "linear-gradient(90deg, #d65f5f" in text and '<caption style="color: red;">Legs' in text
    assert text.count("background-color: #ccd") == 2 and "position" not in text  # not those of the rows


def styled(sheet: str, body: str) -> str:
    return safe_html(f"<style>{sheet}</style>{body}") or ""


@pytest.mark.parametrize(("sheet", "body", "expected"), [
    (".a {color: red}", "<p class='b a'>x</p>", '<p style="color: red;">x</p>'),
    ("p.a, .c {color: red}", "<p class=a>x</p><b class=a>y</b>", '<p style="color: red;">x</p><b>y</b>'),
    ("div > b {color: red}", "<div><i><b>x</b></i><b>y</b></div>",
     '<div><i><b>x</b></i><b style="color: red;">y</b></div>'),
    ("#t .a b {color: red}", "<div id=t><p class=a><i><b>x</b></i></p></div><b>y</b>",
     '<div><p><i><b style="color: red;">x</b></i></p></div><b>y</b>'),
    (".a {color: red} p {color: blue; width: 1px}", "<p class=a style='height: 2px'>x &lt; &#65;</p>",
     '<p style="color: blue;width: 1px;color: red;height: 2px;">x &lt; &#65;</p>'),
    ("p:hover, @media print {p {color: red}} * + p {color: red}", "<p>x</p>", "<p>x</p>"),
    ("p {background: #fdd url(//x.test)} p {color: var(--x)} p {display: flex}", "<p>x</p>",
     '<p style="display: flex;">x</p>'),
    (".output_html .k {color: red}", "<span class=k>def</span>", '<span style="color: red;">def</span>'),
])  # fmt: skip
def test_style_sheet_becomes_styles_of_its_elements(sheet: str, body: str, expected: str) -> None:
    assert styled(sheet, body) == expected


@pytest.mark.thorough
@pytest.mark.parametrize("body", [
    "<a " * 100_000, "<!--" * 80_000, "<p>" * 90_000, "<b>x</b>" * 20_000, "<div class=a>" * 190, "<a t='>" * 20_000,
])  # fmt: skip
def test_style_sheet_of_hostile_text_takes_bounded_time(body: str) -> None:
    began = time.monotonic()
    safe_html("<style>.a p b > c {color: red}" + ".a .b {color: red}" * 5000 + "</style>" + body)
    assert time.monotonic() - began < 60


def test_page_and_image_of_another_site_become_links() -> None:
    text = (
        safe_html("<iframe width=9 src='https://x.test/p?a=1&b=2'></iframe><img src=https://x.test/i.png alt=x>") or ""
    )
    assert text.count("<a href=") == 2 and ">https://x.test/i.png</a>" in text and "<i" not in text


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<img src='http://x.test/a.png'>",
    "<iframe src='https://x.test'></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "<a href=' java\nscript:alert(1)'>x</a>",
    "<svg><script>alert(1)</script></svg>",
    "<svg onload=alert(1)>",
    "<math><mtext><img src=x onerror=alert(1)></mtext></math>",
    "<div style='background: url(http://x.test)'>x</div>",
    "<div style='position:fixed;inset:0;z-index:9999'>x</div>",
    "<form action='http://x.test'><input name=a><button>Go</button></form>",
    "<meta http-equiv=refresh content='0;http://x.test'>",
    "<link rel=stylesheet href='http://x.test'>",
    "<base href='http://x.test'>",
    "<object data=x></object>",
    "<embed src=x>",
    "<video src='http://x.test' autoplay></video>",
    "<b id=x name=y class='jp-Dialog lm-mod-hidden'>x</b>",
    "<img srcset='http://x.test 2x' src='data:image/svg+xml;base64,PHN2Zz4='>",
    "<td background='http://x.test'>x</td>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'></noscript>",
    "<scr<script>ipt>alert(1)</script>",
    "<style>@import 'http://x.test'</style>x",
    "<!--<img src='--><img src=x onerror=alert(1)>-->",
    "<b data-commandlinker-command=x>y</b>",
    "<div style=\"width:1px;background-color:red;background-image:url('//x.test')\">x</div>",
    '<style>#x {background: url(//x.test); position: fixed}</style><table><td id="x">x</td></table>',
    '<style>#x {color: "></td><script>alert(1)</script>"}</style><table><td id="x">x</td></table>',
    "<style>" + "#x {" * 9000 + "</style>x",
    "<script>never closed",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_html_of_a_job_runs_and_loads_nothing(text: str) -> None:
    result = (safe_html(f"<p>before</p>{text}") or "").lower()
    assert "before" in result
    result = re.sub(r'<a href="https?://[^"<>]*">[^<]*</a>', "", result)  # a link loads nothing by itself
    words = (
        "<script onerror onload x.test javascript <iframe <svg <form <input <button url( position <meta <link <base"
        " <object <embed <video id= name= jp-dialog srcset commandlinker @import"
    )
    assert [word for word in words.split() if word in result] == []


@pytest.mark.parametrize(
    "text",
    [
        "<script>x</script>",
        "<div><style>x</style> </div>",
        "<img src='file:///x.png'>",
        "<iframe></iframe>",
        "<video><source src='data:video/mp4;base64,AA=='>Your browser cannot</video>",
    ],
)
def test_html_without_anything_to_see_is_no_form(text: str) -> None:
    assert safe_html(text) is None and "text/html" not in forms({"text/html": text, "text/plain": "t"})


def test_deeply_nested_html_does_not_fail() -> None:
    assert forms({"text/html": "<div>" * 50_000 + "x", "text/plain": "t"})["text/plain"] == "t"


def test_image_has_the_type_of_its_content() -> None:
    assert forms({"image/jpeg": PNG}) == {"image/png": PNG}
    page = base64.b64encode(b"<html><script>alert(1)</script>").decode()
    for data in (page, "no base64!", base64.b64encode(b"<svg onload=alert(1)>").decode(), 7):
        assert forms({"image/png": data}) == {}
    assert forms({"image/svg+xml": "<html><svg>"}) == {} and forms({"image/svg+xml": "<svg></svg>"})


def test_types_that_are_not_drawn_are_left_out() -> None:
    data = {
        "application/javascript": "alert(1)",
        "text/x": "x",
        "application/vnd.jupyter.widget-view+json": {"model_id": "a"},
    }
    assert forms({**data, "text/plain": "t"}) == {"text/plain": "t"}


@pytest.mark.parametrize(("spec", "is_shown"), [
    ({"$schema": "https://vega.github.io/schema/vega-lite/v5.json", "data": {"values": [{"a": 1}]}}, True),
    ({"data": {"url": "https://x.test/data.csv"}}, False),
    ({"layer": [{"mark": {"type": "image", "url": "//x.test"}}]}, False),
])  # fmt: skip
def test_chart_that_would_load_something_is_left_out(spec: Any, is_shown: bool) -> None:
    assert ("application/vnd.vegalite.v5+json" in forms({"application/vnd.vegalite.v5+json": spec})) is is_shown


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'{"data": 7}', b'{"data": {"text/html": {"a": 1}}}', b"\xff" * 100, b"[" * 10**6]
)
def test_damaged_file_has_no_forms(data: bytes) -> None:
    assert forms_of(data) is None


@pytest.mark.parametrize("version", [-1, 1 << 60, "1", None, 1.5])
def test_damaged_version_counts_as_first(version: Any) -> None:
    assert forms_of(file({"text/plain": "t"}, version=version)) == Forms(version=0, chars=18, data={"text/plain": "t"})


def test_sizes_are_numbers_of_forms_that_exist() -> None:
    sizes = {"image/png": {"width": 40, "height": "x"}, "image/gif": {"width": 1}, "text/html": 7}
    result = forms_of(file({"image/png": PNG}, metadata=sizes))
    assert result and result.sizes == {"image/png": {"width": 40}}


def test_image_has_the_text_that_the_script_gave_for_it() -> None:
    result = forms_of(file({"image/png": PNG}, metadata={"image/png": {"alt": "a \x1bbox\n" + 500 * "x"}}))
    assert result and result.title.startswith("a box") and len(result.title) < 300 and not result.picture
    assert (forms_of(file({"image/png": PNG}, metadata={"image/png": {"alt": 7}})) or Forms(title="x")).title == ""


def test_large_image_has_a_small_copy_for_records() -> None:
    large = base64.b64encode(image(size=(800, 600), noise=True)).decode()
    data = file({"image/png": large, "text/plain": "t"})
    result, whole = forms_of(data), forms_of(data, for_record=False)
    assert result and whole and result.chars > MAX_WHOLE_CHARS and not result.data and whole.data["image/png"] == large
    ((kind, copy),) = result.small.items()
    assert len(copy) < 13_000 and result.small_sizes == {kind: {"width": 800, "height": 600}}
