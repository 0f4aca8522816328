"""`openmanus-rl doctor`: what works is told, what is broken fails, what is missing says what it would add."""

import json
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from openmanus_rl.cli import doctor_checks
from tests.cli.conftest import Command
from tests.conftest import REPOSITORY


def test_this_installation_works(command: Command) -> None:
    result = command("doctor")
    assert result.code == 0, result.err
    assert "the base install works" in result.out
    assert "the grid's expert wins" in result.out
    told = json.loads(command("doctor", "--json").out)
    assert told["works"] is True
    names = {finding["name"] for finding in told["findings"]}
    assert {
        "Python",
        "packages",
        "torch",
        "environments",
        "cores",
        "memory",
        "runs directory",
        "ALFWorld games",
    } <= names


def test_every_extra_of_the_package_is_known_with_what_it_adds() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = set(project["optional-dependencies"]) - {"dev"}
    assert declared <= set(doctor_checks.EXTRAS)
    found = {finding.name: finding for finding in doctor_checks.extras()}
    for name, extra in doctor_checks.EXTRAS.items():
        if all(find_spec(doctor_checks.MODULES.get(package, package)) for package in extra.packages):
            assert found[name].level == "ok"
        else:
            assert found[name].level == "missing"
            assert found[name].advice == f"pip install 'openmanus-rl[{name}]'"
            assert extra.adds in found[name].detail


def test_a_missing_extra_is_no_failure(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "find_spec", lambda _: None)
    result = command("doctor")
    assert result.code == 0
    assert "pip install 'openmanus-rl[ray]'" in result.out


def test_a_package_of_the_base_that_is_missing_or_too_old(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"numpy": None, "pydantic": "1.10.0"}
    real = doctor_checks._version
    monkeypatch.setattr(doctor_checks, "_version", lambda name: installed.get(name, real(name)))
    result = command("doctor")
    assert result.code == 1
    assert "the base install does not work: numpy, pydantic" in result.err
    assert "1.10.0; <3,>=2.9 is needed" in result.out
    told = json.loads(command("doctor", "--json").out)
    assert told["works"] is False


def test_a_check_that_breaks_is_a_finding(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError(f"no {name} today")

    monkeypatch.setattr("openmanus_rl.environments.registry.make_env", broken)
    result = command("doctor")
    assert result.code == 1
    assert "RuntimeError: no grid today" in result.out
    assert "ALFWorld games" in result.out  # the others went on


def test_where_nothing_can_be_written(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # root may write everywhere, so the question is answered for it
    monkeypatch.setattr("os.access", lambda *_: False)
    result = command("doctor")
    assert result.code == 1
    assert "set trainer.default_local_dir" in " ".join(result.out.split())


def test_alfworld_s_games(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    [none] = doctor_checks.datasets()
    assert none.level == "missing"
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    [wrong] = doctor_checks.datasets()
    assert (wrong.level, "holds no ALFWorld dataset" in wrong.detail) == ("warn", True)
    (tmp_path / "json_2.1.1" / "train").mkdir(parents=True)
    [there] = doctor_checks.datasets()
    assert (there.level, there.detail) == ("ok", str(tmp_path / "json_2.1.1"))
