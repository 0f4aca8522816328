"""Reading the elements of a JSON list without reading the list."""

import gzip
import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openmanus_rl.environments.webshop import json_stream
from openmanus_rl.environments.webshop.catalogue import read_catalogue
from openmanus_rl.environments.webshop.json_stream import list_elements


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


ODD = [
    {"quote": 'a " b', "backslash": "c:\\", "both": '\\"', "brackets": "]}{[,"},
    {"deep": [[[{"a": [{}]}]]], "empty": {}, "none": None},
    {"unicode": "caf\u00e9 \u2764\ufe0f \U0001f600"},
    "a, string [", 7, -1.5e3, True, None, [], {},
]  # fmt: skip


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("name", ["odd.json", "odd.json.gz"])
@pytest.mark.parametrize("style", [{}, {"indent": 2}, {"ensure_ascii": False}, {"separators": (",", ":")}])
def test_odd_elements_at_every_chunk_border(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, name: str, style: dict[str, object]
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", chunk)
    content = b" \r\n\t" + json.dumps(ODD, **style).encode() + b"\n "
    assert [orjson.loads(part) for part in list_elements(write(tmp_path / name, content))] == ODD


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab\"\\{}[],: \n", max_size=4), inner),
    max_leaves=12,
)  # fmt: skip


@given(items=st.lists(VALUES, max_size=5), indent=st.sampled_from([None, 1]), chunk=st.integers(1, 40))
def test_any_list_is_cut_into_its_elements(
    tmp_path_factory: pytest.TempPathFactory, items: list[object], indent: int | None, chunk: int
) -> None:
    path = write(tmp_path_factory.getbasetemp() / "any.json", json.dumps(items, indent=indent).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_stream, "CHUNK", chunk)
        assert [orjson.loads(part) for part in list_elements(path)] == items


@pytest.mark.parametrize("content", [b"[]", b" [ ] ", b"[\n]\n"])
def test_an_empty_list_has_no_elements(tmp_path: Path, content: bytes) -> None:
    assert list(list_elements(write(tmp_path / "items.json", content))) == []


@pytest.mark.parametrize(
    ("content", "elements"),
    [
        (b'[{"a": 1}, ]', [b'{"a": 1}', b""]),
        (b'[{"a": }, {"b": 2}]', [b'{"a": }', b'{"b": 2}']),
        (b'[{"a": 1} {"b": 2}, 3]', [b'{"a": 1} {"b": 2}', b"3"]),
        (b'[{"a": 1], 3]', [b'{"a": 1]', b"3"]),
        (b'[nonsense, "x"]', [b"nonsense", b'"x"']),
    ],
)
def test_a_bad_element_does_not_lose_the_others(tmp_path: Path, content: bytes, elements: list[bytes]) -> None:
    assert list(list_elements(write(tmp_path / "items.json", content))) == elements


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "byte 0: .*a list of products is expected"),
        (b'  {"a": 1}', "byte 2: .*a list of products is expected, not '{'"),
        (b'[{"a": 1}, {"b": [2', "byte 10: is not JSON: entry 1 is not complete: the file ends inside it"),
        (b'[{"a": 1}, {"b": "2', "byte 10: is not JSON: entry 1 is not complete: the file ends inside it"),
        (b'[{"a": 1}', "byte 1: is not JSON: entry 0 is not complete: the file ends inside it"),
        (b'[{"a": 1}}, 2]', "byte 9: is not JSON: entry 0: a bracket that was not opened"),
        (b"[1, 2] 3", "byte 7: is not JSON: there is something after the end of the list"),
    ],
)
def test_a_file_that_cannot_be_followed_is_refused_with_its_place(tmp_path: Path, content: bytes, message: str) -> None:
    path = write(tmp_path / "items.json", content)
    with pytest.raises(ValueError, match=rf"items\.json: {message}"):
        list(list_elements(path))


def test_an_element_without_end_is_not_read_to_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_stream, "CHUNK", 100)
    monkeypatch.setattr(json_stream, "LONGEST", 1000)
    path = write(tmp_path / "items.json", b'[1, {"a": "' + b"x" * 5000 + b'"}]')
    with pytest.raises(ValueError, match=r"byte 3: .*entry 1 is not complete: it does not end within"):
        list(list_elements(path))


def test_damaged_and_missing_files(tmp_path: Path) -> None:
    whole = gzip.compress(orjson.dumps([{"a": "b" * 1000}] * 50))
    for content, message in ((whole[:-20], "damaged or cut off"), (b"[]", "Not a gzipped file")):
        (tmp_path / "items.json.gz").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            list(list_elements(tmp_path / "items.json.gz"))
    with pytest.raises(ValueError, match=r"none\.json: No such file"):
        list(list_elements(tmp_path / "none.json"))


def test_malformed_entries_are_named_by_file_and_index(tmp_path: Path) -> None:
    good = '{"asin": "B%d", "name": "Mug", "category": "c", "query": "q", "product_category": "A", "pricing": "%s"}'
    entries = [good % (0, "$5"), '{"asin": }', good % (2, "5"), good % (3, "$nan"), "[1]", good % (5, ""), ""]
    items = write(tmp_path / "items.json", f"[{', '.join(entries)}]".encode())
    catalogue = read_catalogue(items, write(tmp_path / "ins.json", b"{}"))
    assert [product.asin for product in catalogue.products] == ["B0", "B5"]
    assert [problem.split(": ")[:2] for problem in catalogue.problems] == [
        [str(items), f"entry {index}"] for index in (1, 2, 3, 4, 6)
    ]
    assert "no price in '5'" in catalogue.problems[1]
