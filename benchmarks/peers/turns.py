"""Sides take turns, round by round, so that whatever else the machine does hits all of them alike."""

from collections.abc import Mapping, Sequence

from benchmarks.harness import Report, spread
from benchmarks.peers.sides import Numbers, Side

Rounds = dict[str, list[Numbers]]


def take_turns(sides: Mapping[str, Side], rounds: int) -> Rounds:
    """Rounds of every side; the first one, in which everything warms up, does not count."""
    found: Rounds = {name: [] for name in sides}
    for number in range(1, rounds + 2):
        for name, side in sides.items():
            made = side.ask("round", number)
            if number > 1:
                found[name].append(made)
            print(f"    {name}, round {number - 1}: {made['seconds']:.1f} s, {made['steps']} steps", flush=True)
    return found


def rates(rounds: Sequence[Numbers], what: str) -> list[float]:
    """Of something counted, how many a second, round by round."""
    return [made[what] / made["seconds"] for made in rounds]


def ratios(ours: Sequence[Numbers], theirs: Sequence[Numbers], what: str) -> list[float]:
    """How many times as fast we are, of rounds that were played one after the other."""
    return [a / b for a, b in zip(rates(ours, what), rates(theirs, what), strict=True)]


def report_rates(report: Report, found: Rounds, counted: Sequence[str], kept_as: str = "rounds") -> None:
    """A row for each side: medians a second, with the range of the first thing counted."""
    report.raw[kept_as] = found
    for name, rounds in found.items():
        first = spread(rates(rounds, counted[0]))
        numbers = {f"{what}_a_second": spread(rates(rounds, what))["median"] for what in counted}
        report.row(name, **numbers, lowest=first["lowest"], highest=first["highest"])
