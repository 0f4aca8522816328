"""`openmanus-rl doctor`: does the installation work, and what could be added to it?"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from openmanus_rl import exits

if TYPE_CHECKING:
    from openmanus_rl.cli.doctor_checks import Finding

SIGNS = {"ok": ("ok", "green"), "fail": ("FAIL", "bold red"), "missing": ("-", "dim"), "warn": ("warn", "yellow")}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Check the installation, and say what each missing extra would add. Exits with 1 if the base does not work."""
    from openmanus_rl.cli.doctor_checks import examine

    found = examine()
    broken = [finding for finding in found if finding.level == "fail"]
    if as_json:
        import dataclasses

        import orjson

        content = {"works": not broken, "findings": [dataclasses.asdict(finding) for finding in found]}
        print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())
    else:
        _show(found)
    if broken:
        names = ", ".join(finding.name for finding in broken)
        print(f"error: the base install does not work: {names}", file=sys.stderr)
        raise SystemExit(exits.FAILED)


def _show(found: "list[Finding]") -> None:
    from rich.table import Table

    from openmanus_rl.cli.screen import make_console, shown

    console = make_console()
    section = ""
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in found:
        if finding.section != section:
            section = finding.section
            table.add_row(shown(""), shown(section, "bold"))
        sign, style = SIGNS[finding.level]
        detail = f"{finding.detail}\n{finding.advice}" if finding.advice else finding.detail
        table.add_row(shown(sign, style), shown(finding.name), shown(detail))
    console.print(table)
    if not any(finding.level == "fail" for finding in found):
        console.print(shown("the base install works", "green"))
