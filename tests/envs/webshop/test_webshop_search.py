"""BM25 as Lucene has it: scores by hand and from the formula, order, ties, the cache."""

import math
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.webshop import search
from envs.webshop.analyzer import terms
from envs.webshop.catalogue import Product
from envs.webshop.search import SearchIndex, document_text, load_or_build, quantised_lengths

TEXTS = st.lists(st.text(st.sampled_from("abcde  "), max_size=90).map(lambda text: " ".join(text)), max_size=30)
PETS = ["red dog", "dogs, DOGS and a cat", "blue"]


def oracle(documents: list[str], query: str) -> dict[int, float]:
    """Document -> score, slowly, of all that have a term of the query."""
    bags = [Counter(terms(text)) for text in documents]
    lengths = [bag.total() for bag in bags]
    counted = sum(length > 0 for length in lengths)
    scores: dict[int, float] = {}
    for term, count in Counter(terms(query)).items():
        df = sum(term in bag for bag in bags)
        idf = math.log(1 + (counted - df + 0.5) / (df + 0.5))
        for document, bag in enumerate(bags):
            if term in bag:
                stored = int(quantised_lengths(np.array([lengths[document]]))[0])
                norm = 0.9 * (0.6 + 0.4 * stored / (sum(lengths) / counted))
                scores[document] = scores.get(document, 0) + count * idf * (1 - 1 / (1 + bag[term] / norm))
    return scores


def random_documents(number: int) -> list[str]:
    """Of few words, so that many tie."""
    rng = np.random.default_rng(0)
    return [" ".join(f"w{word}" for word in rng.integers(0, 12, rng.integers(0, 5))) for _ in range(number)]


def test_a_score_by_hand() -> None:
    # 3 documents of 2, 3 and 1 terms; ln(1 + 1.5 / 2.5) = 0.4700036; norms 0.9 and 0.9 (0.6 + 0.4 * 3 / 2) = 1.08
    found = SearchIndex.build(PETS).scores("dog")
    assert [document for document, _ in found] == [1, 0]
    np.testing.assert_allclose([score for _, score in found], [0.4700036 * 2 / 3.08, 0.4700036 / 1.9], rtol=1e-6)


def test_terms_add_up_and_count_as_often_as_they_stand() -> None:
    index = SearchIndex.build(PETS)
    red, dog = math.log(1 + 2.5 / 1.5) / 1.9, 0.4700036 / 1.9
    assert dict(index.scores("red dog"))[0] == pytest.approx(red + dog, rel=1e-6)
    assert dict(index.scores("dog red the dogs Dog's"))[0] == pytest.approx(red + 3 * dog, rel=1e-6)


def test_scores_are_float32() -> None:
    for _, score in SearchIndex.build(PETS).scores("red dog blue dog"):
        assert score == float(np.float32(score))


def test_documents_without_terms_do_not_count() -> None:
    assert SearchIndex.build([*PETS, "", "the", " - "]).scores("dog cat") == SearchIndex.build(PETS).scores("dog cat")


@given(TEXTS, st.integers(1, 12))
def test_blocks_of_any_size_give_the_same_index(documents: list[str], size: int) -> None:
    whole = SearchIndex.build(documents)
    with mock.patch.object(search, "MOST_DOCUMENTS", size):
        parts = SearchIndex.build(documents)
    for array, expected in zip(parts.arrays, whole.arrays, strict=True):
        np.testing.assert_array_equal(array, expected, strict=True)


@pytest.mark.parametrize(("often", "width"), [(255, 1), (256, 2), (70_000, 4)])
def test_a_term_that_a_document_has_very_often(tmp_path: Path, often: int, width: int) -> None:
    documents = [*PETS, "dog " * often, "dog"]
    index = SearchIndex.build(documents)
    assert index.frequencies.dtype.itemsize == width
    expected = oracle(documents, "dog")
    np.testing.assert_allclose([score for _, score in sorted(index.scores("dog"))], list(expected.values()), rtol=1e-6)
    index.save(tmp_path / "index")
    assert SearchIndex.load(tmp_path / "index").scores("dog") == index.scores("dog")


@given(TEXTS, st.text(st.sampled_from("abcdef  "), max_size=12).map(" ".join))
def test_as_the_formula_says(documents: list[str], query: str) -> None:
    expected = oracle(documents, query)
    found = SearchIndex.build(documents).scores(query, limit=len(documents) + 1)
    assert {document for document, _ in found} == set(expected)
    for document, score in found:
        assert score == pytest.approx(expected[document], rel=1e-5)
    assert found == sorted(found, key=lambda hit: (-hit[1], hit[0]))


@pytest.mark.parametrize("number", [0, 1, 49, 50, 51, 900, 5_000])
@pytest.mark.parametrize("limit", [1, 3, 50])
def test_the_best_are_the_beginning_of_all(number: int, limit: int) -> None:
    index = SearchIndex.build(random_documents(number))
    for query in ("w1", "w2 w3 w3 w11", "w4 unknown"):
        everything = index.scores(query, limit=10**9)
        assert everything == sorted(everything, key=lambda hit: (-hit[1], hit[0]))
        assert index.scores(query, limit) == everything[:limit]


def test_ties_come_in_the_documents_order() -> None:
    assert SearchIndex.build(["cat", *["dog"] * 2_000]).search("dog") == list(range(1, 51))
    assert SearchIndex.build([*["dog"] * 60, "dog dog"]).search("dog", 4) == [60, 0, 1, 2]


@pytest.mark.parametrize("query", ["", " ", "the and of", "unknown", "?!", "\ud800", "\0", "[r] <a> %s"])
def test_a_query_that_nothing_matches(query: str) -> None:
    assert SearchIndex.build(PETS).search(query) == []
    assert SearchIndex.build([]).search(query) == []


def test_no_hits_are_wanted() -> None:
    assert SearchIndex.build(PETS).search("dog", 0) == SearchIndex.build(PETS).search("dog", -1) == []


def test_a_very_long_query() -> None:
    documents = [f"word{n} word{n + 1}" for n in range(300)]
    index = SearchIndex.build(documents)
    query = " ".join(documents) + " unknown" * 20_000
    assert len(query) > 100_000
    # Two words that the query has twice, but for the first and the last document: all others tie, then these.
    assert index.search(query, 300) == [*range(1, 299), 0, 299]
    assert dict(index.scores(query, 300))[150] == pytest.approx(oracle(documents, query)[150], rel=1e-5)
    assert index.search("x" * 100_000) == []


def test_lengths_in_a_byte() -> None:
    exact = np.arange(41)
    assert quantised_lengths(exact).tolist() == exact.tolist()
    # The values that Lucene's byte has next; beyond 2^31 / 16 one stands for millions.
    stored = [
        40,
        42,
        44,
        46,
        48,
        50,
        52,
        54,
        56,
        60,
        64,
        68,
        72,
        76,
        80,
        84,
        88,
        96,
        104,
        112,
        120,
        128,
        136,
        144,
        152,
        168,
    ]
    assert sorted(set(quantised_lengths(np.arange(40, 184)).tolist())) == stored
    assert quantised_lengths(np.array([41, 59, 167, 2**31 - 1])).tolist() == [40, 56, 152, 24 + 15 * 2**27]


def test_any_number_of_threads_may_search() -> None:
    index = SearchIndex.build(random_documents(2_000))
    queries = [f"w{n % 12} w{n % 7}" for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(index.scores, queries)) == [index.scores(query) for query in queries]


def test_pickled() -> None:
    index = pickle.loads(pickle.dumps(SearchIndex.build(PETS)))
    assert index.scores("dog cat") == SearchIndex.build(PETS).scores("dog cat")


def test_built_from_a_stream() -> None:
    assert SearchIndex.build(text for text in PETS).scores("dog") == SearchIndex.build(PETS).scores("dog")


def test_the_cache_gives_what_is_built(tmp_path: Path) -> None:
    documents = random_documents(500)
    index = load_or_build(documents, tmp_path / "new" / "folder")
    assert index.scores("w1 w2") == SearchIndex.build(documents).scores("w1 w2")
    (file,) = (tmp_path / "new" / "folder").iterdir()
    written = file.stat()
    again = load_or_build(documents, str(tmp_path / "new" / "folder"))
    assert again.scores("w1 w2") == index.scores("w1 w2")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_a_loaded_index_is_mapped_and_pickled_as_its_path(tmp_path: Path) -> None:
    index = load_or_build(random_documents(2_000), tmp_path)
    assert not index.documents.flags.writeable
    assert not index.documents.flags.owndata
    pickled = pickle.dumps(index)
    assert len(pickled) < 1_000
    assert pickle.loads(pickled).scores("w1") == index.scores("w1")


@pytest.mark.parametrize("other", [["red dog"], ["red", "dog"], ["dog", "red"], ["re", "ddog"], ["red", "dog", ""], []])
def test_other_documents_have_a_file_of_their_own(tmp_path: Path, other: list[str]) -> None:
    first = ["reddog"]
    load_or_build(first, tmp_path)
    assert load_or_build(other, tmp_path).num_documents == len(other)
    assert len(list(tmp_path.iterdir())) == 2


def damages(content: bytes) -> list[bytes]:
    flipped = [content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :] for at in (0, 24, 33, 60, len(content) - 1)]
    return [*flipped, b"", content[:20], content[:40], content[:-1], content + b"\0", b"\0" * len(content)]


@pytest.mark.parametrize("number", range(11))
def test_a_damaged_file_is_built_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int) -> None:
    load_or_build(PETS, tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(damages(content)[number])
    with pytest.raises(ValueError, match="damaged"):
        SearchIndex.load(file)
    index = load_or_build(PETS, tmp_path)
    assert index.scores("dog") == SearchIndex.build(PETS).scores("dog")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert str(file) in told
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == content


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError, match="taken"):
        SearchIndex.build(PETS).save(target)
    assert list(tmp_path.iterdir()) == [target]


def test_an_iterator_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="iterator"):
        load_or_build(iter(PETS), tmp_path)


def product(**fields: object) -> Product:
    known = {"asin": "B000000001", "name": "Red Shoe", "description": "It Fits.", "bullets": ("Light", "Warm")}
    known |= {
        "category": "c",
        "query": "q",
        "product_category": "p",
        "price_tag": "$1.0",
        "prices": (1.0,),
        "price": 1.0,
    }
    known |= {"options": {}, "attributes": ("soft",), "instruction": None, "instruction_attributes": ()}
    return Product(**(known | fields))  # pyright: ignore[reportArgumentType]


def test_the_text_of_a_product() -> None:
    options = {"color": ("red", "Dark Blue"), "size": ("x | y",)}
    assert document_text(product(options=options)) == ("red shoe it fits. light color: red, dark blue, and size: x | y")
    assert document_text(product(description="", bullets=())) == "red shoe   "


class Documents:
    """Counts how often it is read."""

    read = 0

    def __iter__(self) -> Iterator[str]:
        self.read += 1
        return iter(PETS)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_told_before_the_index_is_built() -> None:
    documents = Documents()
    with pytest.raises(OSError, match=r"search-.*\.index"):
        load_or_build(documents, "/proc/self")
    assert documents.read == 1  # for its name


def test_processes_that_build_the_same_index_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from envs.webshop.search import load_or_build\n"
        "documents = [f'word{n} word{n % 7}' for n in range(2000)]\n"
        "sys.stdin.readline(); print(load_or_build(documents, sys.argv[1]).search('word3', 3))"
    )
    start = partial(subprocess.Popen, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    processes = [start([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    answers = [process.communicate("go\n") for process in processes]
    assert answers == [("[3, 10, 17]\n", "")] * 3
    assert len(list(tmp_path.iterdir())) == 1


def test_what_was_asked_before_changes_no_answer() -> None:
    documents = random_documents(300)
    used = SearchIndex.build(documents)
    for query in ("w1 w1 w2", "w1", "unknown w1 w2", "w2 w3 w3"):
        assert used.scores(query) == SearchIndex.build(documents).scores(query)
    assert set(used._met) == {"w1", "w2", "w3"}  # terms that it doesn't have aren't kept
    assert pickle.loads(pickle.dumps(used)).scores("w1 w2") == used.scores("w1 w2")
