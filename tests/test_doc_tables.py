"""Pages with numbers say what was measured."""

import pytest

from benchmarks.doc_tables import DOCS, TABLES, filled


@pytest.mark.parametrize("name", TABLES)
def test_the_page_has_the_numbers_of_the_record(name: str) -> None:
    page = DOCS / TABLES[name][0]
    text = page.read_text(encoding="utf-8")
    assert text == filled(name, text), "run: python -m benchmarks.doc_tables"


def test_a_page_without_a_place_for_them_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"rollouts\.md must have one place for the numbers of rollout, and has 0"):
        filled("rollout", "# Rollouts\n")
