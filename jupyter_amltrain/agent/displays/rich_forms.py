"""Rich forms of a value by MIME type, as Jupyter's protocol asks for them: HTML, images, Markdown, LaTeX, JSON.

The module travels alone, as ``amltrain_forms.py`` among the hooks of a job, so it imports only the standard library.
A value may be anything: what one of its methods raises costs only that form.
"""

from __future__ import annotations

import base64
import json
import re
import sys

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

    Report = Callable[[str], None]
    #: Data and metadata by MIME type. Images are in base64.
    Bundle = Tuple[Dict[str, Any], Dict[str, Any]]

#: Forms that are text, by the method that makes them.
_TEXTS = (
    ("text/html", "_repr_html_"),
    ("text/markdown", "_repr_markdown_"),
    ("text/latex", "_repr_latex_"),
    ("image/svg+xml", "_repr_svg_"),
)
#: Images, the first one that fits is taken.
_IMAGES = (("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"))
#: All MIME types that are taken; ``application/vnd.*+json`` besides.
_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_TEXT_TYPES = tuple(name for name, _ in _TEXTS)
_JSON = "application/json"
_JSON_TYPE = re.compile(r"application/(?:json|vnd\.(?!jupyter\.widget)[\w.+-]+\+json)\Z")
#: Bytes of a text, of a JSON value and of an image; larger forms are left out.
MAX_TEXT_BYTES, MAX_JSON_BYTES, MAX_IMAGE_BYTES = 256 << 10, 1 << 20, 6 << 20
#: Characters of the text that stands for an image.
MAX_ALT_CHARS = 200
#: Classes of HTML that shows only its plain text where its own style sheet is not allowed, which the text shows better.
_NEEDS_STYLE = re.compile(r"""class=["'][^"']*\b(?:sk-top-container|xr-text-repr-fallback)\b""")
#: HTML that is a player, as of ``IPython.display.Audio``.
_PLAYER = re.compile(r"\s*<(audio|video)\b", re.IGNORECASE)
#: Seconds that Plotly may take to draw a picture: it starts a browser.
_PLOTLY_TIMEOUT_S = 20.0
_SCHEMA = re.compile(r"/(vega(?:-lite)?)/v(\d+)")
_failed: List[str] = []


def bundle_of(value: Any, report: Report) -> Bundle:
    """Return the rich forms of a value without its text; empty if it has none.

    Parameters
    ----------
    report
        Gets one sentence for each form that was left out.
    """
    forms = _Forms(value, report)
    package = (type(value).__module__ or "").partition(".")[0]
    special = _SPECIAL.get(package)
    if special is not None:
        try:
            special(value, forms)
        except Exception as error:  # code of a package, of any version
            forms.failed("its picture", error)
        if forms.data:
            return forms.data, forms.metadata
    forms.by_protocol()
    return forms.data, forms.metadata


def checked(data: Any, metadata: Any, report: Report) -> Bundle:
    """Return the forms of a ready bundle, as ``publish_display_data`` gets it."""
    forms = _Forms(data, report)
    if isinstance(data, dict):
        forms.add_all(data, metadata)
    return forms.data, forms.metadata


def method_of(value: Any, name: str) -> Any:
    """Return a method of the protocol; ``None`` of a class, and of an object that has every attribute."""
    if isinstance(value, type):
        return None
    try:
        if callable(getattr(value, "_ipython_canary_method_should_not_exist_", None)):
            return None
        method = getattr(value, name, None)
    except Exception:  # of an attribute that raises
        return None
    return method if callable(method) else None


class _Forms:
    """Collects the forms of one value that are valid and small enough."""

    def __init__(self, value: Any, report: Report) -> None:
        self.data: Dict[str, Any] = {}
        self.metadata: Dict[str, Any] = {}
        self._value, self._report = value, report

    def failed(self, what: str, error: BaseException) -> None:
        self._report("%s of a %s could not be made (%s: %s)" % (
            what, type(self._value).__name__, type(error).__name__, error))  # fmt: skip

    def by_protocol(self) -> None:
        """Call the methods of the value."""
        bundle = self._called("_repr_mimebundle_", include=None, exclude=None)
        if isinstance(bundle, tuple) and len(bundle) == 2:
            bundle, metadata = bundle
        else:
            metadata = None
        if isinstance(bundle, dict):
            self.add_all(bundle, metadata)
        for mime, name in _TEXTS:
            if mime not in self.data:
                self._add(mime, *_pair(self._called(name)))
        for mime, name in _IMAGES:
            if not any(kind in self.data for kind in _IMAGE_TYPES):
                self._add(mime, *_pair(self._called(name)))
        if _JSON not in self.data:
            self._add(_JSON, *_pair(self._called("_repr_json_")))

    def add_all(self, data: Dict[str, Any], metadata: Any) -> None:
        """Take the forms of a bundle."""
        for mime, form in list(data.items())[:50]:
            own = metadata.get(mime) if isinstance(metadata, dict) else None
            self._add(mime, form, own)

    def _called(self, name: str, **options: Any) -> Any:
        method = method_of(self._value, name)
        if method is None:
            return None
        try:
            return method(**options)
        except NotImplementedError:  # a class whose base has the method
            return None
        except Exception as error:  # code of the value's class
            self.failed(name, error)
            return None

    def _add(self, mime: Any, form: Any, metadata: Any = None) -> None:
        if form is None or not isinstance(mime, str):
            return
        if mime in _TEXT_TYPES:
            taken, size, most = self._text(mime, form)
        elif mime in _IMAGE_TYPES:
            taken, size, most = self._image(form)
        elif _JSON_TYPE.match(mime):
            taken, size, most = self._json(mime, form)
        else:
            return
        if taken is not None and size > most:
            what = "%s of a %s is left out: it has %d MB, and at most %.3g MB are shown"
            return self._report(what % (mime, type(self._value).__name__, size / 1e6, most / 1e6))
        if taken is None:
            return
        self.data[mime] = taken
        if isinstance(metadata, dict):
            own = {key: metadata[key] for key in ("width", "height") if _is_number(metadata.get(key))}
            if metadata.get("alt") and isinstance(metadata["alt"], str):
                own["alt"] = metadata["alt"][:MAX_ALT_CHARS]
            if own:
                self.metadata[mime] = own

    def _text(self, mime: str, form: Any) -> Tuple[Any, int, int]:
        if not isinstance(form, str) or not form.strip():
            return None, 0, 0
        if mime == "text/html" and _NEEDS_STYLE.search(form[:20000]):
            return None, 0, 0
        player = _PLAYER.match(form) if mime == "text/html" else None
        if player:
            what = "a run's output plays no %s: to download the file, write it into ./outputs"
            self._report(what % player.group(1).lower())
            return None, 0, 0
        return form, len(form) if len(form) > MAX_TEXT_BYTES else len(form.encode("utf-8", "replace")), MAX_TEXT_BYTES

    def _image(self, form: Any) -> Tuple[Any, int, int]:
        if isinstance(form, (bytes, bytearray)):
            if len(form) > MAX_IMAGE_BYTES:
                return form, len(form), MAX_IMAGE_BYTES
            return base64.b64encode(form).decode(), len(form), MAX_IMAGE_BYTES
        if isinstance(form, str):  # base64 already, with ends of lines
            return (
                "".join(form.split()) if len(form) < 2 * MAX_IMAGE_BYTES else form,
                len(form) * 3 // 4,
                MAX_IMAGE_BYTES,
            )
        return None, 0, 0

    def _json(self, mime: str, form: Any) -> Tuple[Any, int, int]:
        if isinstance(form, str) and mime != _JSON:
            try:
                form = json.loads(form)
            except ValueError:  # Bokeh gives code the type of JSON
                return None, 0, 0
        if not isinstance(form, (dict, list)):
            return None, 0, 0
        try:
            text = json.dumps(form, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            self.failed(mime, error)
            return None, 0, 0
        return (json.loads(text) if len(text) <= MAX_JSON_BYTES else form), len(text), MAX_JSON_BYTES


def _pair(form: Any) -> Tuple[Any, Any]:
    """Return a form and its metadata: a method may return both."""
    return form if isinstance(form, tuple) and len(form) == 2 else (form, None)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 100000


# ---- libraries whose values have a picture by another way


def _matplotlib(value: Any, forms: _Forms) -> None:
    figure = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
    if figure is None or not isinstance(value, figure):
        return
    pictures = __import__("amltrain_pictures")
    forms.add_all({"image/png": pictures.png_of(value)}, {"image/png": {"alt": pictures.title_of(value)}})
    value._amltrain_saved = True  # it need not be shown once more at the end of a cell


def _plotly(value: Any, forms: _Forms) -> None:
    to_json = method_of(value, "to_plotly_json")
    if to_json is None:
        return
    forms.add_all({"application/vnd.plotly.v1+json": value.to_json()}, None)
    png = _with_timeout(lambda: value.to_image(format="png"), "kaleido", _PLOTLY_TIMEOUT_S)
    if png:
        forms.add_all({"image/png": png}, None)


def _altair(value: Any, forms: _Forms) -> None:
    if method_of(value, "to_dict") is None or method_of(value, "_repr_mimebundle_") is None:
        return
    spec = value.to_dict()
    match = _SCHEMA.search(str(spec.get("$schema")))
    kind, version = match.groups() if match else ("vega-lite", "5")
    forms.add_all({"application/vnd.%s.v%s+json" % (kind.replace("-", ""), version): spec}, None)

    def png() -> Any:
        import vl_convert  # type: ignore[import-not-found]

        draw = vl_convert.vega_to_png if kind == "vega" else vl_convert.vegalite_to_png
        return draw(spec, scale=1)

    drawn = _with_timeout(png, "vl_convert", _PLOTLY_TIMEOUT_S)
    if drawn:
        forms.add_all({"image/png": drawn}, None)


def _with_timeout(draw: Callable[[], Any], library: str, timeout: float) -> Optional[bytes]:
    """Return a picture that an optional library draws; ``None`` without it, and after it has failed once."""
    from importlib.util import find_spec

    if library in _failed or find_spec(library) is None:
        return None
    import threading

    drawn: List[Any] = []

    def work() -> None:
        try:
            drawn.append(draw())
        except Exception:  # no browser on this machine, for example: the JSON is shown
            pass

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(timeout)
    if not drawn or not isinstance(drawn[0], bytes):
        _failed.append(library)
        return None
    return drawn[0]


_SPECIAL: Dict[str, Any] = {"matplotlib": _matplotlib, "plotly": _plotly, "altair": _altair}
