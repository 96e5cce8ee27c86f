"""What a batch leaves: for each set the executed notebook, its page and its last figure; for all of them an index."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from resnet_acc.files import write_atomically, write_json
from resnet_acc.notebooks.found import Notebook
from resnet_acc.notebooks.state import FAILED, SetState, last_figure, reports_of, results_of, summary


def finish_set(notebook: Notebook, folder: Path, state: SetState) -> None:
    """Write a set's page and figure from what its executed notebook holds; what cannot be written becomes a note."""
    path = folder / (state.executed or "")
    if not path.is_file():
        state.executed = None
        return
    try:
        import nbformat

        from resnet_acc.notebooks.page import Heading, write_page

        executed = nbformat.read(path, as_version=4)
        state.reports = reports_of(executed)
        state.results = [line for report in state.reports for line in results_of(report)]
        figure = last_figure(executed)
        if figure is not None:
            write_atomically(folder / f"{state.stem}.png", figure)
            state.figure = f"{state.stem}.png"
        error = f"{state.error}{state.where}" if state.status == FAILED else ""
        links = [("executed notebook", quote(path.name)), ("all sets", "index.html")]
        parameters = notebook.values(state.parameters)
        heading = Heading(f"{notebook.title}: {state.name}", state.status, parameters, links, error)
        page = write_page(executed, heading, notebook.path.parent)
        write_atomically(folder / f"{state.stem}.html", page.encode("utf-8", errors="replace"))
        state.page = f"{state.stem}.html"
    except Exception as error:  # the measurements stand whatever becomes of their page
        state.notes.append(f"its page could not be written: {type(error).__name__}: {error}")


def write_index(notebook: Notebook, folder: Path, states: Sequence[SetState], most_at_once: int, command: str) -> None:
    """Write index.html and batch.json, each whole."""
    whole = {
        "schema": 1,
        "notebook": str(notebook.path),
        "command": command,
        "summary": summary(list(states)),
        "sets": [asdict(state) for state in states],
    }
    write_json(folder / "batch.json", whole)
    write_atomically(
        folder / "index.html", _page(notebook, folder, states, most_at_once, command).encode("utf-8", "replace")
    )


def _page(notebook: Notebook, folder: Path, states: Sequence[SetState], most_at_once: int, command: str) -> str:
    from jinja2 import Environment

    given = {name for state in states for name in state.parameters}
    names = [parameter.name for parameter in notebook.parameters if parameter.name in given]
    rows = [{"state": state, "values": _values(notebook, state, names)} for state in states]
    rest = {name: value for name, value in notebook.values({}).items() if name not in given}
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template.filters["address"] = lambda path: quote(str(path))
    template.filters["file_address"] = lambda path: Path(path).absolute().as_uri()
    return template.from_string(_INDEX).render(
        title=notebook.title,
        notebook=str(notebook.path),
        summary=summary(list(states)),
        names=names,
        rows=rows,
        rest=[f"{name} = {value!r}" for name, value in rest.items()],
        at_once=most_at_once,
        command=command,
        written=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        folder=str(folder),
    )


def _values(notebook: Notebook, state: SetState, names: Sequence[str]) -> list[str]:
    values: dict[str, Any] = notebook.values(state.parameters)
    return [repr(values[name]) for name in names]


_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}: {{ summary }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; }
th, td { border: 1px solid #ccc; padding: .3rem .5rem; text-align: left; vertical-align: top; }
th { background: #f2f2f2; } td img { max-width: 22rem; max-height: 14rem; display: block; }
pre { background: #f6f6f6; padding: .5rem; overflow-x: auto; font-size: .82rem; white-space: pre-wrap; }
.error { background: #fdecea; margin: .2rem 0; } .failed, .stopped { color: #a00; font-weight: 600; }
.ok { color: #060; font-weight: 600; } ul { margin: 0; padding-left: 1.1rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p><strong>{{ summary }}</strong>. {{ notebook }}. Written {{ written }}.</p>
{% if at_once > 1 %}<p>Up to {{ at_once }} sets ran at once: they shared this machine's cores, memory and disk, so that
their rates may be lower than of a set alone.</p>{% endif %}
<div class="wide"><table>
<thead><tr><th>set</th><th>status</th><th>time</th>{% for name in names %}<th>{{ name }}</th>{% endfor %}
<th>files</th><th>result</th></tr></thead>
<tbody>
{% for row in rows %}
{% set state = row.state %}
<tr><td>{{ state.number }}. {{ state.name }}{% if state.gpus %}<br>GPU {{ state.gpus|join(", ") }}{% endif %}</td>
<td><span class="{{ state.status }}">{{ state.status }}</span></td>
<td>{{ "" if state.seconds is none else "%.1f s"|format(state.seconds) }}</td>
{% for value in row["values"] %}<td>{{ value }}</td>{% endfor %}
<td>{% if state.page %}<a href="{{ state.page|address }}">page</a><br>{% endif %}
{% if state.executed and state.status != "running" %}<a href="{{ state.executed|address }}">notebook</a><br>{% endif %}
{% for report in state.reports %}<a href="{{ report|file_address }}">report</a><br>{% endfor %}</td>
<td>{% if state.error %}<pre class="error">{{ state.error }}{{ state.where }}</pre>{% endif %}
{% if state.results %}<ul>{% for line in state.results %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
{% for note in state.notes %}<p>{{ note }}</p>{% endfor %}
{% if state.figure %}<a href="{{ (state.page or state.figure)|address }}"><img loading="lazy"
 alt="last figure of {{ state.name }}" src="{{ state.figure|address }}"></a>{% endif %}</td></tr>
{% endfor %}
</tbody></table></div>
{% if rest %}<h2>Parameters that every set left at the notebook's own values</h2>
<pre>{% for line in rest %}{{ line }}
{% endfor %}</pre>{% endif %}
{% if command %}<h2>How to run it again</h2><pre>{{ command }}</pre>{% endif %}
</body>
</html>
"""
