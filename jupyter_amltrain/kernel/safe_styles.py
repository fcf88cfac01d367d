"""Styles of HTML that a job displays: only what acts within its element, and no style sheet, which acts on the page."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from typing import Any, NamedTuple


def words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


#: Properties that act within their element, and whose values load nothing. The page has the same list.
STYLES = words(
    "background background-color background-image border border-bottom border-bottom-color border-bottom-style"
    " border-bottom-width border-collapse border-color border-left border-left-color border-left-style"
    " border-left-width border-radius border-right border-right-color border-right-style border-right-width"
    " border-spacing border-style border-top border-top-color border-top-style border-top-width border-width"
    " align-items caption-side clear color column-gap display flex flex-basis flex-direction flex-grow flex-shrink"
    " flex-wrap float font-family font-size font-style font-variant font-weight gap grid-template-columns height"
    " justify-content letter-spacing line-height margin margin-bottom margin-left margin-right margin-top max-height"
    " max-width min-height min-width opacity overflow overflow-x overflow-y padding padding-bottom padding-left"
    " padding-right padding-top row-gap table-layout text-align text-decoration text-indent text-overflow"
    " text-transform vertical-align visibility white-space width word-break word-wrap"
)
#: Functions of values, none of which loads a file.
_FUNCTIONS = words("calc hsl hsla linear-gradient max min minmax repeat rgb rgba")
_VALUES = words("comment dimension hash ident literal number percentage string whitespace")
#: Rules of style sheets that are not of one id, characters of a selector, and comparisons with elements.
_MAX_RULES, _MAX_SELECTOR, _MAX_COMPARISONS = 150, 200, 2_000_000
_COMPOUND = re.compile(r"([a-zA-Z][\w-]*|\*)?((?:[#.][\w-]+)*)\Z")
_COMBINATOR = re.compile(r"\s*(>)\s*|\s+")
_ID = re.compile(r"#([\w-]+)\Z")
#: The box of an output in a notebook, below which IPython's colors of code are.
_OUTPUT = ".output_html"
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
#: What a parser of HTML may read again and again: a tag without an end.
_UNCLOSED = re.compile(r"<[a-zA-Z/][^<>]*(?:<|\Z)|<[!?]")
#: Elements without an end at one place.
_MAX_OPEN = 300
_VOID = words("area base br col embed hr img input link meta param source track wbr")


class SafeStyles:
    """Sanitizer of declarations, in the shape that bleach wants."""

    def sanitize_css(self, style: str) -> str:
        """Return the declarations that are allowed."""
        import tinycss2

        declared = tinycss2.parse_declaration_list(style, skip_comments=True, skip_whitespace=True)
        kept = [one for one in declared if one.type == "declaration" and one.lower_name in STYLES]
        return str(tinycss2.serialize([one for one in kept if _loads_nothing(one.value)])).strip()


def _loads_nothing(value: Sequence[Any]) -> bool:
    left = list(value)
    while left:
        token = left.pop()
        if token.type == "function" and token.lower_name in _FUNCTIONS:
            left += token.arguments
        elif token.type not in _VALUES:
            return False
    return True


class _Compound(NamedTuple):
    """Part of a selector about one element."""

    tag: str
    id: str
    classes: frozenset[str]
    is_child: bool  #: of an element of the part before, not any descendant


class _Rule(NamedTuple):
    """What a style sheet declares for the elements of one selector."""

    weight: tuple[int, int, int]
    parts: tuple[_Compound, ...]
    declared: str


def with_inline_styles(text: str, sheets: Iterable[str]) -> str:
    """Give each element the styles that style sheets have for it, as far as their selectors are simple ones.

    Parameters
    ----------
    text
        HTML without style sheets and scripts.
    """
    by_id: dict[str, str] = {}
    rules: list[_Rule] = []
    for selector, declared in _declarations(sheets):
        if match := _ID.match(selector):  # a styled table of pandas has one for each cell
            by_id[match[1]] = f"{by_id.get(match[1], '')} {declared}".strip()
        elif len(rules) < _MAX_RULES and (rule := _rule(selector, declared)):
            rules.append(rule)
    text = _COMMENT.sub("", text)
    if not (by_id or rules) or _UNCLOSED.search(text):
        return text
    writer = _StyleWriter(by_id, sorted(rules, key=lambda rule: rule.weight))
    try:
        writer.feed(text)
        writer.close()
    except _TooMany:
        return text
    return "".join(writer.written)


def _declarations(sheets: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield selectors, and what is declared for them."""
    import tinycss2

    for sheet in sheets:
        sheet = sheet.replace(f"{_OUTPUT} ", "")
        for rule in tinycss2.parse_stylesheet(sheet, skip_comments=True, skip_whitespace=True):
            if rule.type == "qualified-rule":
                declared = SafeStyles().sanitize_css(tinycss2.serialize(rule.content))
                if declared:
                    selectors = tinycss2.serialize(rule.prelude).split(",")
                    yield from ((selector.strip(), f"{declared.rstrip(';')};") for selector in selectors)


def _rule(selector: str, declared: str) -> _Rule | None:
    if len(selector) > _MAX_SELECTOR:
        return None
    parts = []
    is_child = False
    for word in _COMBINATOR.split(selector):
        if not word or word == ">":  # None for a space
            is_child = word == ">"
            continue
        match = _COMPOUND.match(word)
        if match is None:
            return None
        names = re.findall(r"[#.][\w-]+", match[2])
        ids = [name[1:] for name in names if name[0] == "#"]
        classes = frozenset(name[1:] for name in names if name[0] == ".")
        tag = (match[1] or "*").lower()
        parts.append(_Compound(tag, ids[0] if ids else "", classes, is_child))
    weight = (
        sum(bool(part.id) for part in parts),
        sum(len(part.classes) for part in parts),
        sum(part.tag != "*" for part in parts),
    )
    return _Rule(weight, tuple(parts), declared) if parts else None


class _TooMany(Exception):
    """More comparisons of selectors and elements, or elements in elements, than are allowed."""


class _Open(NamedTuple):
    """An element that has no end yet: for each rule, the parts that it and its ancestors match, as bits."""

    tag: str
    own: tuple[int, ...]
    above: tuple[int, ...]


class _StyleWriter(HTMLParser):
    """Writes HTML as it is, with styles."""

    def __init__(self, by_id: dict[str, str], rules: Sequence[_Rule]) -> None:
        super().__init__(convert_charrefs=False)
        self.written: list[str] = []
        self._by_id, self._rules = by_id, rules
        self._left = _MAX_COMPARISONS
        self._open = [_Open("", (0,) * len(rules), (0,) * len(rules))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = self._write_start(tag, attrs)
        if len(self._open) > _MAX_OPEN:
            raise _TooMany
        if tag not in _VOID:
            above = tuple(a | b for a, b in zip(self._open[-1].above, own, strict=True))
            self._open.append(_Open(tag, own, above))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._write_start(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        self.written.append(f"</{tag}>")
        if any(one.tag == tag for one in self._open):
            while self._open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.written.append(data)

    def handle_entityref(self, name: str) -> None:
        self.written.append(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.written.append(f"&#{name};")

    def _write_start(self, tag: str, attrs: list[tuple[str, str | None]]) -> tuple[int, ...]:
        named = {name: value or "" for name, value in reversed(attrs)}
        own = self._matches(tag, named.get("id", ""), frozenset(named.get("class", "").split()))
        styles = [
            rule.declared for rule, bits in zip(self._rules, own, strict=True) if bits >> (len(rule.parts) - 1) & 1
        ]
        styles += [self._by_id.get(named.get("id", ""), ""), named.get("style", "")]
        raw = self.get_starttag_text() or ""
        style = " ".join(filter(None, styles))
        if style:  # of an attribute that is there twice, the first counts
            raw = f'{raw[: len(tag) + 1]} style="{html.escape(style)}"{raw[len(tag) + 1 :]}'
        self.written.append(raw)
        return own

    def _matches(self, tag: str, own_id: str, classes: frozenset[str]) -> tuple[int, ...]:
        """Return for each rule the parts that an element matches, whose earlier parts its ancestors match."""
        parent = self._open[-1]
        found = []
        for at, rule in enumerate(self._rules):
            bits = 0
            self._left -= len(rule.parts)
            for place, part in enumerate(rule.parts):
                before = parent.own[at] if part.is_child else parent.above[at]
                if place and not before >> (place - 1) & 1:
                    continue
                if part.tag in ("*", tag) and part.id in ("", own_id) and part.classes <= classes:
                    bits |= 1 << place
            found.append(bits)
        if self._left < 0:
            raise _TooMany
        return tuple(found)
