"""The page: skeleton, style, the runs' data, and the script that draws them.

No text from elsewhere ever becomes markup. The runs are one JSON text in which no character can
end its element; the script puts text into the page as text. A content security policy lets only
the page's own script run (by its hash), lets no text become code, and forbids every connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from evotune.report.answers import Explained
from evotune.report.data import RunData
from evotune.report.html._payload import run_payload
from evotune.report.html.pictures import picture_style
from evotune.report.records import finite
from evotune.trial import Json
from evotune.version import __version__

_SCRIPTS = (
    "elements.js",
    "filter.js",
    "table.js",
    "axes.js",
    "charts.js",
    "parallel.js",
    "figures.js",
    "pictures.js",
    "explain.js",
    "sections.js",
    "main.js",
)


def html_page(runs: Sequence[RunData], explanations: Sequence[Explained | None] = ()) -> str:
    """The page of one or more runs.

    `explanations`: for each run the one of its winner, or None (`explain.report_parts`).
    """
    found = explanations or [None] * len(runs)
    payloads = [run_payload(run, each) for run, each in zip(runs, found, strict=True)]
    data = {"evotune": __version__, "runs": payloads}
    script = "'use strict';\n" + "\n".join(_asset(name) for name in _SCRIPTS)
    names = ", ".join(dict.fromkeys(run.space or "run" for run in runs))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<title>{html.escape(names)} - evotune</title>
<link rel="icon" href="data:,">
<style>
{_asset("report.css")}
{picture_style()}
</style>
</head>
<body>
<noscript>
<p>This report draws itself with JavaScript, all of which is inside the file. In short:</p>
{_opening(payloads)}
</noscript>
<main id="page"></main>
<script type="application/json" id="data">{_embedded(data)}</script>
<script>{script}</script>
</body>
</html>
"""


def _opening(payloads: Sequence[Mapping[str, Json]]) -> str:
    """The answers of each run, for a reader without JavaScript."""
    parts = []
    for payload in payloads:
        parts.append(f"<h2>{html.escape(str(payload['id']))}</h2>")
        for answer in payload["answers"]:
            said = html.escape(" ".join(answer["sentences"]))
            parts.append(f"<p><b>{html.escape(answer['question'])}</b> {said}</p>")
            lines = [f"{line}  # {why}" for line, why in answer["commands"]]
            parts += [f"<pre>{html.escape(line)}</pre>" for line in lines]
    return "\n".join(parts)


def _asset(name: str) -> str:
    return files("evotune.report.html").joinpath("assets", name).read_text(encoding="utf-8")


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules = (
        "default-src 'none'",
        f"script-src 'sha256-{digest}'",
        "style-src 'unsafe-inline'",
        "img-src data:",
    )
    return "; ".join(rules)


def _embedded(data: Json) -> str:
    """JSON that is safe inside a script element: no `<`, so neither `</script` nor `<!--`."""
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
