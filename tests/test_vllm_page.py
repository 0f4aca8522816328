"""docs/vllm.md says what the kept numbers say."""

import json

from benchmarks.vllm import KEPT, PAGE, page


def test_the_table_is_what_the_numbers_make() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text, json.loads(KEPT.read_text())), "run: python -m benchmarks.vllm --page"
    assert "tokens/s" in text
