"""`openmanus-rl view` and `openmanus-rl report`: a run to look at, live in the browser or as one file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

Runs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[RUN]...", help="Run directories; default: those in runs/.", show_default=False),
]
Play = Annotated[
    bool, typer.Option("--references/--no-references", help="Play for the random and expert lines, once a run.")
]


def view(
    runs: Runs = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes one that is free.")] = 8642,
    host: Annotated[str, typer.Option(help="Only this machine can reach the default.")] = "127.0.0.1",
    token: Annotated[
        str,
        typer.Option(envvar="OPENMANUS_VIEW_TOKEN", show_default=False, help="Wanted first: open /?token=TOKEN."),
    ] = "",
    references: Play = True,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Look at runs in the browser: curves, health, every token's credit; live while they are going on."""
    from openmanus_rl.cli.flags import mistakes
    from openmanus_rl.viewer.server import open_runs, serve
    from openmanus_rl.web.requests import is_loopback

    if not token and not is_loopback(host):
        print(
            f"warning: whoever reaches {host} can read these runs: there is no token. Set $OPENMANUS_VIEW_TOKEN.",
            file=sys.stderr,
        )

    def ready(address: str) -> None:
        hint = "open it with /?token=TOKEN; " if token else ""
        print(f"viewing {len(found)} run{'s' if len(found) > 1 else ''} on {address}  ({hint}Ctrl-C ends)", flush=True)
        if open_browser:
            import webbrowser
            from urllib.parse import quote

            webbrowser.open(f"{address}/?token={quote(token, safe='')}" if token else address)

    with mistakes():
        found = open_runs(runs or [], Path("runs"))
        serve(found, host, port, references, ready, token or None)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories; several are compared.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Default: report.html in the first run.", show_default=False
        ),
    ] = None,
    references: Play = True,
) -> None:
    """Write a run as one HTML file that opens anywhere: the page of `view`, with some of the episodes inside."""
    from openmanus_rl.cli.flags import mistakes
    from openmanus_rl.viewer.references import find_references
    from openmanus_rl.viewer.report import default_output, write_report
    from openmanus_rl.viewer.server import open_runs

    with mistakes():
        found = open_runs(runs, Path("runs"))
        if references:
            for run in found:
                if run.config is not None:
                    find_references(run.path, run.config)
        path = write_report(found, output or default_output(runs[0]))
    print(f"report: {path} ({path.stat().st_size / 1e6:.1f} MB)")
