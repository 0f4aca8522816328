"""Environments that misbehave, to be served."""

import sys
from pathlib import Path
from typing import Any


class Crashing:
    """Does what the action says, wrongly."""

    def __init__(self, closed: str = "") -> None:
        self.closed = closed

    def reset(self, **_: Any) -> tuple[str, dict[str, Any]]:
        return "go on", {}

    def step(self, action: str) -> Any:
        info: dict[str, Any] = {}
        match action:
            case "raise":
                raise KeyError("the cellar")
            case "exit":
                sys.exit(3)
            case "nan":
                return "x", float("nan"), False, False, info
            case "set":
                info["things"] = {1, 2}
            case "short":
                return "x", 0.0, False
        return f"done {action}", 0.5, False, False, info

    def close(self) -> None:
        if self.closed:
            with Path(self.closed).open("a") as file:
                file.write("closed\n")
        raise RuntimeError("closing fails too")
