"""The page itself, from `assets/`: with modules that a server delivers, or with everything inside one file.

The modules import each other by bare names (`viewer/charts.js`), and an import map says where these are: on the server,
or in the page as `data:` addresses. So the code of both pages is the same, to the byte.
"""

from __future__ import annotations

import base64
import hashlib
import html
from importlib import resources
from typing import Any

import orjson

ASSETS = resources.files("openmanus_rl.viewer") / "assets"
MODULES = (
    "dom.js", "format.js", "charts.js", "source.js", "overview.js", "list.js", "tokens.js", "episode.js",
    "trajectories.js", "compare.js", "main.js",
)  # fmt: skip
# Nothing may be fetched by a file that was opened from disk, and nothing but its own scripts may run.
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def read_asset(name: str) -> bytes:
    """One of the files that belong to the page; KeyError for any other name."""
    if name not in (*MODULES, "style.css"):
        raise KeyError(name)
    return (ASSETS / name).read_bytes()


def import_map(address_of: dict[str, str]) -> str:
    """Where the modules are."""
    return orjson.dumps({"imports": {f"viewer/{name}": address_of[name] for name in MODULES}}).decode()


def served_page() -> tuple[str, str]:
    """The page of a server, and the policy that its browser is to hold it to."""
    mapping = import_map({name: f"/assets/{name}" for name in MODULES})
    digest = base64.b64encode(hashlib.sha256(mapping.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    head = '<link rel="stylesheet" href="/assets/style.css">'
    body = f'<script type="importmap">{mapping}</script>\n<script type="module" src="/assets/main.js"></script>'
    return _filled("OpenManus-RL", head, body), policy


def report_page(title: str, data: dict[str, Any], episodes: dict[str, dict[str, Any]]) -> str:
    """The page with all its data inside. Each episode is a block of its own, read when it is looked at."""
    mapping = import_map({name: _data_address(read_asset(name)) for name in MODULES})
    policy = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(REPORT_POLICY)}">'
    head = f"{policy}\n<style>{read_asset('style.css').decode()}</style>"
    blocks = [f'<script type="application/json" id="data">{_embedded(data)}</script>']
    blocks += [
        f'<script type="application/json" data-episode="{html.escape(name)}">{_embedded(episode)}</script>'
        for name, episode in episodes.items()
    ]
    start = '<script type="module">import "viewer/main.js";</script>'
    return _filled(title, head, "\n".join([f'<script type="importmap">{mapping}</script>', *blocks, start]))


def _filled(title: str, head: str, body: str) -> str:
    frame = (ASSETS / "page.html").read_text(encoding="utf-8")
    before, _, rest = frame.partition("<!-- head -->")
    middle, _, after = rest.partition("<!-- body -->")
    return f"{before.replace('<!-- title -->', html.escape(title))}{head}{middle}{body}{after}"


def _data_address(content: bytes) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(content).decode()}"


def as_json(value: Any) -> bytes:
    r"""Values as JSON, whatever a foreign run holds: numbers and texts that JSON has no form for are shown as they can.

    >>> as_json({"seed": 10**30, "name": "a\udc80"})
    b'{"seed":1e+30,"name":"a?"}'
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return orjson.dumps(_representable(value))


def _representable(value: Any) -> Any:
    if isinstance(value, dict):
        return {_representable(str(key)): _representable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_representable(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value) if abs(value) < 2**1023 else None
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _embedded(value: Any) -> str:
    r"""JSON that no text in it can leave: `<` is written as `\u003c`, so there is no `</script` and no `<!--`.

    >>> _embedded("</script>")
    '"\\u003c/script>"'
    """
    return as_json(value).decode().replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
