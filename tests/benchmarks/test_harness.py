"""What is kept with every result: the code, the versions and the machine that it is of, and the rounds."""

import json
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.comparison_page import kept, measured, page
from benchmarks.harness import Report, commit, timed, versions
from benchmarks.peers import sides


def git(folder: Path, *words: str) -> str:
    own = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run([*own, *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def test_a_commit_is_told_with_whether_its_code_was_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) == "unknown"
    git(tmp_path, "init", "--quiet")
    assert commit(tmp_path) == "unknown", "there is none yet"
    (tmp_path / "a.py").write_text("a = 1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "a")
    short = git(tmp_path, "rev-parse", "--short", "HEAD")
    (tmp_path / "results.json").write_text("{}")
    assert commit(tmp_path) == short
    (tmp_path / "a.py").write_text("a = 2\n")
    assert commit(tmp_path) == f"{short}, changed"


def test_without_git_the_commit_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(tmp_path) == "unknown"


def test_a_result_says_what_it_depends_on(tmp_path: Path) -> None:
    report = Report("update")
    report.row("ours", ms=1.0)
    report.raw["rounds"] = [1.0, 2.0]
    report.peers["TRL"] = {"trl": "1.16.0"}
    record = json.loads(report.write(tmp_path).read_text())
    assert record["versions"] == {name: version(name) for name in ("torch", "transformers")}
    assert record["commit"] == commit()
    assert record["memory_gib"] > 0
    assert (record["peers"], record["raw"]) == ({"TRL": {"trl": "1.16.0"}}, {"rounds": [1.0, 2.0]})
    told = measured(record)
    for part in (f"commit {record['commit']}", f"torch {record['versions']['torch']}", "TRL: trl 1.16.0", " GiB"):
        assert part in told


def test_a_result_of_before_these_were_kept_is_shown() -> None:
    old = {"benchmark": "update", "when": "2026-11-16T17:01:46+00:00", "machine": "Intel, 2 cores", "rows": []}
    told = "Measured 2026-11-16 on Intel, 2 cores. `python -m benchmarks update`\n\nTo be repeated: "
    assert measured(old) == f"{told}its commit was not written down."
    assert measured({**old, "since_then": "made with half of it."}) == f"{told}made with half of it."
    assert "To be repeated" not in measured({**old, "commit": "beccb0a"})
    records = kept()
    for record in records.values():
        for name in ("memory_gib", "commit", "versions", "peers"):
            record.pop(name, None)
    assert "Measured 20" in page(records)


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert versions(("torch", "no-such-package")) == {"torch": version("torch")}


def test_a_peers_versions_are_those_of_its_own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_VENV_PEERS", str(tmp_path))
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/sh\necho \'{"trl": "1.16.0"}\'\n')
    python.chmod(0o755)
    assert sides.peer_versions("peers") == {"trl": "1.16.0"}


def test_rounds_are_kept_and_the_first_does_not_count() -> None:
    calls: list[str] = []
    found = timed({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert "".join(calls) == "ababab"
    assert [len(times) for times in found.values()] == [2, 2]
