"""The report's page. Rendered with autoescape: whatever a run is called, it stays text."""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.7rem; } h2 { font-size: 1.25rem; margin-top: 2.2rem; border-bottom: 1px solid #ccc; }
h3 { font-size: 1.05rem; margin-bottom: .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; }
th, td { border: 1px solid #ccc; padding: .3rem .5rem; text-align: right; vertical-align: top; }
th { background: #f2f2f2; } td:first-child, th:first-child { text-align: left; white-space: nowrap; }
td.text { text-align: left; }
img { max-width: 100%; height: auto; display: block; margin: .6rem 0 1.4rem; }
pre { background: #f6f6f6; padding: .6rem; overflow-x: auto; font-size: .82rem; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem 1.2rem; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<p>{{ summary }}</p>
{% if cuts %}<p>Left out, so that this page stays small (summary.json beside it has every row and run):</p>
<ul>{% for cut in cuts %}<li>{{ cut }}</li>{% endfor %}</ul>{% endif %}

<h2>What was measured</h2>
{% for heading, lines in sections %}<h3>{{ heading }}</h3>
<ul>{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>
{% endfor %}

<h2>Results</h2>
<div class="wide"><table>
<thead><tr>{% for name in columns %}<th>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% else %}<tr><td colspan="{{ columns|length }}">no run finished</td></tr>{% endfor %}</tbody>
</table></div>
<p>In square brackets: 95 % confidence interval. ~: the interval of the ratio contains 1, or there is none.</p>

{% if left_out %}<h2>Not in the results</h2>
<div class="wide"><table>
<thead><tr><th>arm</th><th>run</th><th>status</th><th>reason</th></tr></thead>
<tbody>{% for entry in left_out %}<tr><td>{{ entry.label }}</td><td class="text">{{ entry.run }}</td>
<td class="text">{{ entry.status }}</td><td class="text">{{ entry.reason }}
{%- if entry.last_lines %}<pre>{{ entry.last_lines }}</pre>{% endif %}</td></tr>
{% endfor %}</tbody></table></div>{% endif %}

<h2>Figures</h2>
{% for name, picture in pictures %}<img alt="{{ name }}" src="data:image/png;base64,{{ picture }}">
{% endfor %}
<pre>{{ caption }}</pre>

<h2>What each number means</h2>
<dl>{% for name, meaning in meanings %}<dt>{{ name }}</dt><dd>{{ meaning }}</dd>
{% endfor %}</dl>

<h2>How to run it again</h2>
{% if command %}<p>The whole comparison:</p><pre>{{ command }}</pre>{% endif %}
{% for entry in commands %}<h3>{{ entry.label }}, run {{ entry.run }}</h3>
<pre>{{ entry.command }}</pre>{% endfor %}

<h2>Environment</h2>
{% for name, values in environments %}<h3>{{ name }}</h3>
<pre>{{ values }}</pre>{% endfor %}
</body>
</html>
"""

MEANINGS = (
    (
        "images/s",
        "Images of all processes over the seconds of the timed windows: total over total, never a mean of "
        "rates. The device has finished its work at both edges of a window. Warm-up and windows in which something was "
        "compiled are not in it.",
    ),
    ("images/s per process", "images/s over the number of processes."),
    ("batch per process, in all", "batch_size counts per process; in all is batch_size times processes."),
    (
        "ratio to eager, to kernel",
        "images/s over that of the baseline with the same number of processes. eager is plain "
        "PyTorch, kernel is eager with channels_last, a fused optimizer and cudnn's search.",
    ),
    (
        "95 % confidence interval",
        "By scipy.stats.bootstrap: drawn from runs where both arms have at least three, else "
        "from intervals; the table says which. Intervals of a single run do not show how runs differ.",
    ),
    ("step ms", "Milliseconds of one step in the timed windows."),
    (
        "start-up s",
        "From the start of the process: set-up, the first step, and what the other warm-up steps took "
        "longer than steady ones. Median of the repeats.",
    ),
    ("compile s", "Compilation by the compiler's own account; 0 for arms that compile nothing."),
    (
        "break-even steps",
        "Extra start-up over the time won per step, against eager and against kernel: from so many "
        "steps on the arm has paid. never: its steps are not faster.",
    ),
    ("peak GiB", "Largest peak memory of one process."),
    ("top-1, top-5", "Percent of validation images right, each counted once; n/a where nothing was validated."),
    (
        "MFU",
        "FLOPs of forward and backward of an image times images/s per process over the card's dense peak; n/a for "
        "unknown cards and for CPUs. float32 is set against the TF32 peak.",
    ),
)
