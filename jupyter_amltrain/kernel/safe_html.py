"""HTML of a job without what could act on a page: scripts, style sheets, forms, files of other sites."""

from __future__ import annotations

import html
import logging
import re

log = logging.getLogger(__name__)

#: Characters of a text that is shown.
MAX_TEXT = 300_000


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Elements whose content is no text.
_HIDDEN = re.compile(
    r"<(style|script|title|template|noscript|iframe|object|textarea|select|svg|math)\b.*?(?:</\1\s*>|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_TAGS = _words(
    "a abbr b blockquote br caption center cite code col colgroup dd del details dfn div dl dt em figcaption figure h1"
    " h2 h3 h4 h5 h6 hr i img ins kbd li mark ol p pre progress q s samp small span strike strong sub summary sup table"
    " tbody td tfoot th thead tr tt u ul var wbr"
)
_ATTRIBUTES = _words("align alt border colspan dir height lang max open rowspan start title valign value width")
#: Properties of a style that act within its element, and whose values load nothing.
_STYLES = _words(
    "background-color border border-bottom border-collapse border-color border-left border-radius border-right"
    " border-spacing border-style border-top border-width color font-family font-size font-style font-variant"
    " font-weight line-height max-width min-width padding padding-bottom padding-left padding-right padding-top"
    " text-align text-decoration text-indent text-transform vertical-align white-space width word-break word-wrap"
)
#: Elements in elements: the time that a parser takes grows with the square of their number.
_MAX_DEPTH = 200
_TAG = re.compile(r"<(/?)([a-zA-Z][\w:-]*)")
#: Elements that have no content, and those that the next of their kind ends.
_NOT_NESTED = _words(
    "area base br col embed hr img input link meta param source track wbr dd dt li p tbody td tfoot th thead tr"
)
_IMAGE_DATA = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=\s]+\Z")
#: An image that was not allowed, as the sanitizer writes it: every value is in quotes.
_NO_IMAGE = re.compile(r'<img(?:\s+(?!src=)[\w-]+="[^"]*")*\s*/?>')
_LINK = re.compile(r"(?:https?:|mailto:|#)", re.IGNORECASE)
_SHEET = re.compile(r"<style\b[^>]*>(.*?)</style\s*>", re.DOTALL | re.IGNORECASE)
_ID_SELECTOR = re.compile(r"#([\w-]+)")
#: The id of a cell, where it has no style of its own.
_CELL_ID = re.compile(r'<t[dh]\b(?![^>]*\sstyle=)[^>]*?\sid="([\w-]+)"')


def safe_html(text: str) -> str | None:
    """Return HTML without scripts, style sheets and external files; ``None`` if nothing is left to see."""
    try:
        import bleach
        from bleach.css_sanitizer import CSSSanitizer
    except ImportError:  # it comes with nbconvert
        return None
    styles = CSSSanitizer(allowed_css_properties=_STYLES, allowed_svg_properties=())
    try:
        text = _HIDDEN.sub("", _with_styles(text))
        if _depth(text) > _MAX_DEPTH:
            return None
        result = bleach.clean(text, tags=_TAGS, attributes=_is_allowed, css_sanitizer=styles, strip=True)
    except Exception:  # parsers of somebody else's; RecursionError of elements in elements
        log.info("HTML of a display", exc_info=True)
        return None
    result = _NO_IMAGE.sub("", str(result)).strip()
    visible = html.unescape(re.sub(r"<(?!img [^>]*src=|progress\b)[^>]*>", "", result)).strip()
    return result if visible and len(result) <= MAX_TEXT else None


def _with_styles(text: str) -> str:
    """Give cells of a table what a style sheet says of their ids, as those of pandas' styled tables do."""
    try:
        styles = _styles_of_ids(text)
    except RecursionError:  # blocks in blocks
        return text
    if not styles:
        return text
    styled = _CELL_ID.sub(
        lambda found: f'{found[0]} style="{html.escape(styles[found[1]])}"' if found[1] in styles else found[0], text
    )
    return styled if len(styled) <= 2 * MAX_TEXT else text


def _styles_of_ids(text: str) -> dict[str, str]:
    """Return what the style sheets in a text say of single elements, by id."""
    import tinycss2

    styles: dict[str, str] = {}
    for sheet in _SHEET.findall(text):
        for rule in tinycss2.parse_stylesheet(sheet, skip_comments=True, skip_whitespace=True):
            if rule.type == "qualified-rule":
                declared = tinycss2.serialize(rule.content).strip()
                for selector in tinycss2.serialize(rule.prelude).split(","):
                    if match := _ID_SELECTOR.fullmatch(selector.strip()):
                        styles[match[1]] = f"{styles.get(match[1], '')} {declared}"
    return styles


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
