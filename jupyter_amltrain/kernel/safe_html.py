"""HTML of a job without what could act on a page: scripts, style sheets, forms, files of other sites."""

from __future__ import annotations

import html
import logging
import re

from jupyter_amltrain.kernel.safe_styles import SafeStyles, with_inline_styles, words

log = logging.getLogger(__name__)

#: Characters of a text that is shown.
MAX_TEXT = 300_000


#: Elements whose content is no text.
_HIDDEN = re.compile(
    r"<(style|script|title|template|noscript|iframe|object|audio|video|textarea|select|svg|math)\b.*?(?:</\1\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_TAGS = words(
    "a abbr b blockquote br caption center cite code col colgroup dd del details dfn div dl dt em figcaption figure h1"
    " h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre progress q s samp small span strike strong sub summary sup table"
    " tbody td tfoot th thead tr tt u ul var wbr"
)
_ATTRIBUTES = words("align alt border colspan dir height lang max open rowspan start title valign value width")
#: Elements in elements: the time that a parser takes grows with the square of their number.
_MAX_DEPTH = 200
_TAG = re.compile(r"<(/?)([a-zA-Z][\w:-]*)")
#: Elements that have no content, and those that the next of their kind ends.
_NOT_NESTED = words(
    "area base br col embed hr img input link meta param source track wbr dd dt li p tbody td tfoot th thead tr"
)
_IMAGE_DATA = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+\Z")
#: An image that was not allowed, as the sanitizer writes it: every value is in quotes.
_NO_IMAGE = re.compile(r'<img(?:\s+(?!src=)[\w-]+="[^"]*")*\s*/?>')
_LINK = re.compile(r"(?:https?:|mailto:|#)", re.IGNORECASE)
#: A style sheet; the one of pandas' plain tables has only what pages have for tables anyway.
_SHEET = re.compile(r"<style\b(?![^>]*\bscoped\b)[^>]*>(.*?)</style\s*>", re.DOTALL | re.IGNORECASE)
#: A page or an image of another site, which becomes a link.
_FAR = re.compile(r"""<(?:iframe|img)\b[^<>]*?\ssrc\s*=\s*["']?(https?://[^"'\s<>]{1,1000})[^<>]*>""", re.IGNORECASE)


def safe_html(text: str) -> str | None:
    """Return HTML without scripts, style sheets and external files; ``None`` if nothing is left to see."""
    try:
        import bleach
    except ImportError:  # it comes with nbconvert
        return None
    try:
        sheets = _SHEET.findall(text)
        text = _HIDDEN.sub("", _FAR.sub(r'<a href="\1">\1</a>', text))
        if _depth(text) > _MAX_DEPTH:
            return None
        styled = _styled(text, sheets) if sheets else text
        result = bleach.clean(styled, tags=_TAGS, attributes=_is_allowed, css_sanitizer=SafeStyles(), strip=True)
    except Exception:  # parsers of somebody else's; RecursionError of elements in elements
        log.info("HTML of a display", exc_info=True)
        return None
    result = _NO_IMAGE.sub("", str(result)).strip()
    visible = html.unescape(re.sub(r"<(?!img [^>]*src=|progress\b)[^>]*>", "", result)).strip()
    return result if visible and len(result) <= MAX_TEXT else None


def _styled(text: str, sheets: list[str]) -> str:
    """Return HTML with the styles of its sheets, or as it is."""
    try:
        styled = with_inline_styles(text, sheets)
    except Exception:  # RecursionError of blocks in blocks
        log.info("style sheet of a display", exc_info=True)
        return text
    return styled if len(styled) <= 2 * MAX_TEXT else text


def _depth(text: str) -> int:
    """Return how many elements are nested, at most."""
    depth = deepest = 0
    for tag in _TAG.finditer(text):
        if tag[2].lower() not in _NOT_NESTED:
            depth = max(0, depth - 1) if tag[1] else depth + 1
            deepest = max(deepest, depth)
    return deepest


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if name == "src":
        return tag == "img" and _IMAGE_DATA.match(value) is not None
    if name == "href":
        return tag == "a" and _LINK.match(value) is not None
    return name in _ATTRIBUTES or name == "style" or (name == "class" and value == "dataframe")
