"""The code blocks of the documentation, with the marks that stand before them.

A mark is an HTML comment on a line of its own, directly above the block:

    <!-- needs: gpu -->              not run here, because it needs that; its `train` lines must still be sound
    <!-- runs in: tests/x.py -->     too long for a page; that file does it
    <!-- with: openmanus-rl serve runs/default -->   started first, ended after the page
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), REPOSITORY / "CONTRIBUTING.md"]
MARKS = ("needs", "runs in", "with")
_BLOCK = re.compile(
    r"^(?P<marks>(?:<!--[^\n]*-->\n)*)(?P<indent> *)```(?P<language>\w+)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """What stands between the fences."""

    page: Path
    line: int
    language: str
    text: str
    marks: dict[str, str]

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return "needs" not in self.marks and "runs in" not in self.marks

    @property
    def file_name(self) -> str | None:
        """The file that a block shows, by its first line: `# name.py`."""
        found = re.match(r"# ([\w./]+\.(?:py|yaml))\n", self.text)
        return found[1] if found else None

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block, continued ones joined, without comments of their own."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        marks = {}
        for comment in match["marks"].splitlines():
            name, _, value = comment.removeprefix("<!--").removesuffix("-->").strip().partition(":")
            marks[name.strip()] = value.strip()
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], match["text"], marks))
    return found


def all_blocks(language: str) -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page) if block.language == language]
