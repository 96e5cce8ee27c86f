"""An executed notebook as one HTML file without the code: nothing in it is fetched from elsewhere, and nothing runs."""

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from nbconvert import HTMLExporter
from nbconvert.preprocessors.sanitize import SanitizeHTML

from resnet_acc.notebooks.cut import OVERHEAD, Budget, cut_outputs, plain

MAX_BYTES = 2_900_000
"""Of a page: it must be one that can be mailed and opened on a phone."""

_BUDGETS = ((2_200_000, 100_000), (1_000_000, 30_000), (300_000, 5_000), (20_000, 500), (0, 0))
"""Characters of all outputs and of one text. Escaping and colours make a text longer, so smaller ones are tried."""

_ERROR_CELL = "papermill-error-cell-tag"
_DATA_URI = re.compile(r"data:image/(?:png|jpeg|gif|webp|svg\+xml);base64,[A-Za-z0-9+/=\s]+")
_STYLE = re.compile(r"<style\b.*?</style\s*>", re.IGNORECASE | re.DOTALL)
_LONG_SCRIPT = re.compile(r"(<script\b[^>]*>)([^<]{2000}.*?)(</script\s*>)", re.IGNORECASE | re.DOTALL)
_TAGS = (
    *("a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div", "dl"),
    *("dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "ol", "p"),
    *("pre", "q", "s", "samp", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot"),
    *("th", "thead", "tr", "u", "ul"),
)
_ATTRIBUTES = frozenset({"alt", "align", "class", "colspan", "height", "href", "open", "rowspan", "title", "width"})
_STYLES = (
    *("background-color", "border-collapse", "color", "font-style", "font-weight", "text-align", "text-decoration"),
    *("vertical-align", "white-space", "width", "height"),
)


@dataclass(frozen=True)
class Heading:
    """What stands above the outputs. `links` are (words, relative address); `error` is what it failed with."""

    title: str
    status: str
    parameters: Mapping[str, Any]
    links: Sequence[tuple[str, str]] = ()
    error: str = ""


class _Cleaner:
    """HTML of outputs and of Markdown without what could run or be fetched; pictures within it are kept."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._place = f"https://{secrets.token_hex(8)}.invalid/"
        self._pictures: list[str] = []
        self._sanitizer = SanitizeHTML(attributes=self._allowed, tags=list(_TAGS), styles=list(_STYLES))

    def _allowed(self, tag: str, name: str, value: str) -> bool:
        if name == "src":
            return tag == "img" and value.startswith(self._place)
        if name == "style":
            return "url" not in value.lower() and "\\" not in value
        if name == "href":
            return tag == "a" and not value.startswith(self._place)
        return name in _ATTRIBUTES

    def clean(self, html: str) -> str:
        """Tags outside the list come out as text."""
        html = _LONG_SCRIPT.sub(lambda m: f"{m[1]}[{len(m[2]):,} characters of script were cut]{m[3]}", html)
        html = _DATA_URI.sub(self._keep, _STYLE.sub("", html))
        html = self._sanitizer.sanitize_html_tags(html)
        for number, picture in enumerate(self._pictures):
            html = html.replace(f"{self._place}{number}/", picture)
        return str(html)

    def _keep(self, found: "re.Match[str]") -> str:
        picture = "".join(found[0].split())
        if not self._budget.takes(len(picture)):
            return self._budget.drop("a picture", len(picture), "in Markdown or HTML")
        self._pictures.append(picture)
        return f"{self._place}{len(self._pictures) - 1}/"


class _Exporter(HTMLExporter):
    """nbconvert's plainest template, with every piece of HTML cleaned."""

    cleaner: _Cleaner

    @jinja2.pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Rendered, then cleaned."""
        try:
            return self.cleaner.clean(super().markdown2html(context, source))
        except Exception:  # a missing attachment, or a text that the renderer stumbles over
            return f"<pre>{jinja2.filters.escape(source)}</pre>"


def write_page(executed: Any, heading: Heading, folder: Path) -> str:
    """The page of an executed notebook.

    Args:
        executed: the notebook's content, as nbformat reads it.
        heading: what stands above its outputs.
        folder: the notebook's own folder, which pictures in its Markdown are looked for in.
    """
    page = ""
    for number, (whole, text) in enumerate(_BUDGETS):
        budget = Budget(whole, text)
        body = _body(executed, budget, folder, embed=number < len(_BUDGETS) - 1)
        page = _wrap(body, heading, budget.cuts)
        if len(page.encode("utf-8", errors="replace")) <= MAX_BYTES:
            return page
    return _wrap("", heading, ["everything: the notebook's own text is too long for a page"])


def _body(executed: Any, budget: Budget, folder: Path, *, embed: bool) -> str:
    notebook = nbformat.v4.new_notebook(cells=_cells(executed, budget))
    exporter = _Exporter(
        template_name="basic",
        embed_images=embed,
        exclude_input=True,
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        exclude_anchor_links=True,
    )
    exporter.cleaner = _Cleaner(budget)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "text/html" in output.get("data", {}):
                output.data["text/html"] = exporter.cleaner.clean(output.data["text/html"])
            elif "image/svg+xml" in output.get("data", {}):
                address = f"data:image/svg+xml;base64,{output.data['image/svg+xml']}"
                output.data = nbformat.from_dict({"text/html": f'<img alt="figure" src="{address}">'})
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"path": str(folder)}})
    return str(body)


def _cells(executed: Any, budget: Budget) -> list[Any]:
    """Markdown and outputs, with nothing else of the notebook: no code, no tags, no raw cells, no metadata."""
    cells, number = [], 0
    for place, cell in enumerate(executed.cells):
        tags = cell.metadata.get("tags", [])
        if not budget.takes(OVERHEAD):
            budget.cuts.append(f"the last {len(executed.cells) - place:,} cells")
            break
        if cell.cell_type == "code":
            number += 1
            outputs = cut_outputs(cell.get("outputs", []), f"cell {number}", budget)
            cells.append(nbformat.v4.new_code_cell(outputs=[nbformat.from_dict(output) for output in outputs]))
        elif cell.cell_type == "markdown" and _ERROR_CELL not in tags:
            source = budget.text(plain(cell.source), f"text above cell {number + 1}")
            kept = nbformat.v4.new_markdown_cell(source)
            if cell.get("attachments"):
                kept["attachments"] = cell.attachments
            cells.append(kept)
    return cells


def _wrap(body: str, heading: Heading, cuts: Sequence[str]) -> str:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    parameters = [(name, repr(value)) for name, value in heading.parameters.items()]
    return environment.from_string(_PAGE).render(
        heading=heading, parameters=parameters, cuts=list(dict.fromkeys(cuts)), body=jinja2.filters.Markup(body)
    )


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ heading.title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
header { border-bottom: 2px solid #888; margin-bottom: 1.5rem; padding-bottom: .5rem; }
table { border-collapse: collapse; font-size: .88rem; margin: .5rem 0; }
th, td { border: 1px solid #ccc; padding: .2rem .5rem; text-align: left; vertical-align: top; }
pre { background: #f6f6f6; padding: .5rem; overflow-x: auto; font-size: .82rem; white-space: pre-wrap; }
img { max-width: 100%; height: auto; }
.output_area { overflow-x: auto; } .output_stderr pre, .failed { background: #fdecea; }
.failed, .cut { border: 1px solid #c33; padding: .5rem; } .cut { border-color: #b80; background: #fff8e1; }
.ansi-red-fg, .ansi-red-intense-fg { color: #b22; } .ansi-green-fg, .ansi-green-intense-fg { color: #070; }
.ansi-yellow-fg, .ansi-yellow-intense-fg { color: #860; } .ansi-blue-fg, .ansi-blue-intense-fg { color: #04b; }
.ansi-magenta-fg, .ansi-magenta-intense-fg { color: #808; } .ansi-cyan-fg, .ansi-cyan-intense-fg { color: #077; }
.ansi-bold { font-weight: bold; } .ansi-underline { text-decoration: underline; }
</style>
</head>
<body>
<header>
<h1>{{ heading.title }}</h1>
<p>Status: <strong>{{ heading.status }}</strong>.
{% for words, address in heading.links %}
<a href="{{ address }}">{{ words }}</a>{{ ", " if not loop.last }}
{% endfor %}</p>
{% if parameters %}
<table><thead><tr><th>parameter</th><th>value</th></tr></thead>
<tbody>{% for name, value in parameters %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>{% endfor %}</tbody></table>
{% endif %}
{% if heading.error %}<pre class="failed">{{ heading.error }}</pre>{% endif %}
{% if cuts %}
<div class="cut">Left out, so that this page stays small; the executed notebook has all of it:
<ul>{% for cut in cuts[:50] %}<li>{{ cut }}</li>{% endfor %}</ul>
{% if cuts|length > 50 %}and {{ cuts|length - 50 }} more{% endif %}</div>
{% endif %}
</header>
<main>
{{ body }}
</main>
</body>
</html>
"""
