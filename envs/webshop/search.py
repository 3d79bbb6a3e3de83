"""The shop's search engine: BM25 as Lucene 8.11 computes it, in NumPy.

    score(q, d) = sum over the query's terms t of  w - w / (1 + tf / (k1 (1 - b + b dl/avgdl)))
    w = count of t in q * ln(1 + (N - df + .5) / (df + .5)),   k1 = 0.9, b = 0.4

with tf the count of t in d, df the documents that have t, N those that have any term, avgdl their mean length and dl
the length as Lucene stores it, in one byte. The terms' scores are float32, their sum is exact and rounded once: so
near-ties come in Lucene's order.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import sys
import uuid
import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from envs.webshop import analyzer
from envs.webshop.postings import MOST_DOCUMENTS, merged, sorted_by_term

if TYPE_CHECKING:
    from envs.webshop.catalogue import Product

_K1, _B = np.float32(0.9), np.float32(0.4)
_ABOVE_0 = np.finfo(np.float32).tiny  # far below any score
_BATCH = 64  # terms of a query whose postings are added up together: bounds the memory of a very long one

# The file: this, CRC-32 of all that follows, D, N, T, P, bytes of a frequency (int64 each) and the arrays in the order
# of their fields.
_MAGIC = b"WebShop search index 02\n"
_PREFIX = len(_MAGIC) + 8


@dataclass(frozen=True, eq=False)
class SearchIndex:
    """Postings by term, T terms and P postings over D documents. Any number of threads may search at once.

    Attributes:
        num_documents: D.
        counted: documents with at least one term, N of the formula.
        hashes: uint64 [T], ascending, what stands for the terms.
        offsets: int64 [T + 1], where a term's postings begin.
        inverse_norms: float32 [D], 1 / (k1 (1 - b + b dl/avgdl)).
        documents: int32 [P], ascending within a term.
        frequencies: uint8 [P], or uint16 or uint32 where one needs it: tf.
        path: the file that the arrays lie in, where they do. A pickled index then is this path alone.
    """

    num_documents: int
    counted: int
    hashes: np.ndarray
    offsets: np.ndarray
    inverse_norms: np.ndarray
    documents: np.ndarray
    frequencies: np.ndarray
    path: Path | None = None
    _met: dict[str, _WeightedTerm] = field(default_factory=dict, init=False, repr=False)  # terms asked for so far

    @classmethod
    def build(cls, documents: Iterable[str]) -> SearchIndex:
        """The index of some texts, which are read once and not kept.

        Args:
            documents: texts; a document's number is its place.

        Returns:
            The index, in memory.

        Raises:
            ValueError: if two terms have one hash, which one catalogue in 30 million of a million terms has.
        """
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__
        lengths, blocks = array("q"), []
        texts = iter(documents)
        while batch := list(itertools.islice(texts, MOST_DOCUMENTS)):
            blocks.append(sorted_by_term(batch, vocabulary, lengths))
        hashes = np.fromiter(map(_hash, vocabulary), np.uint64, len(vocabulary))
        vocabulary.clear()  # it and the cached stems are large, and no longer needed
        analyzer.forget_words()
        by_hash = np.argsort(hashes)
        hashes = hashes[by_hash]
        if (hashes[1:] == hashes[:-1]).any():
            raise ValueError("two terms of the catalogue have the same hash; leave out one product")
        rank = np.empty(len(hashes), np.int32)
        rank[by_hash] = np.arange(len(hashes), dtype=np.int32)
        length = np.frombuffer(lengths, np.int64)
        offsets, found, frequencies = merged(blocks, rank)
        counted = int(np.count_nonzero(length))
        return cls(len(length), counted, hashes, offsets, _inverse_norms(length), found, frequencies)

    def search(self, query: str, limit: int = 50) -> list[int]:
        """The best documents for a query: those that have any of its terms, by score.

        Args:
            query: any text; its terms are a bag of words.
            limit: how many documents at most.

        Returns:
            Document numbers, the best first, equal ones in the documents' order; empty where no term is known.
        """
        return [document for document, _ in self.scores(query, limit)]

    def scores(self, query: str, limit: int = 50) -> list[tuple[int, float]]:
        """As `search`, each document with its score."""
        weighted = self._look_up(query)
        if not weighted or limit < 1:
            return []
        total = np.zeros(self.num_documents)  # in float64 the sum of a query's float32 scores is exact
        for start in range(0, len(weighted), _BATCH):
            batch = weighted[start : start + _BATCH]
            found = np.concatenate([self.documents[term.postings] for term in batch])
            parts = [term.weight - term.weight / self._saturations(term.postings) for term in batch]
            total += np.bincount(found, np.concatenate(parts), self.num_documents)
        scores = total.astype(np.float32)
        candidates = np.flatnonzero(scores >= _at_most_nth(scores, limit))
        best = candidates[np.argsort(-scores[candidates], kind="stable")[:limit]]
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What takes memory."""
        return self.hashes, self.offsets, self.inverse_norms, self.documents, self.frequencies

    def _saturations(self, postings: slice) -> np.ndarray:
        """float32, 1 + tf / (k1 (1 - b + b dl/avgdl)) of some postings."""
        inverse_norms = self.inverse_norms[self.documents[postings]]
        return np.float32(1) + self.frequencies[postings].astype(np.float32) * inverse_norms

    def _look_up(self, query: str) -> list[_WeightedTerm]:
        """Those of the query's terms that the index has."""
        counts = Counter(analyzer.terms(query))
        new = [term for term in counts if term not in self._met]
        hashes = np.fromiter(map(_hash, new), np.uint64, len(new))
        for term, place, wanted in zip(new, np.searchsorted(self.hashes, hashes).tolist(), hashes, strict=True):
            if place < len(self.hashes) and self.hashes[place] == wanted:
                start, end = self.offsets[place : place + 2].tolist()
                df = end - start
                idf = np.float32(np.log(1 + (self.counted - df + 0.5) / (df + 0.5)))
                self._met[term] = _WeightedTerm(idf, slice(start, end))
        found = [(self._met.get(term), count) for term, count in counts.items()]
        return [_WeightedTerm(np.float32(count) * met.weight, met.postings) for met, count in found if met]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a file, whole or not at all.

        Args:
            path: the file; one that is there is replaced, and who has it open keeps the old one.

        Raises:
            OSError: if it can't be written.
        """
        with _replacing(Path(path)) as file:
            self._write(file)

    def _write(self, file: BinaryIO) -> None:
        numbers = self.num_documents, self.counted, len(self.hashes), len(self.documents), self.frequencies.itemsize
        parts = [np.array(numbers, np.int64), *self.arrays]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part.data, checksum)
        file.write(_MAGIC + checksum.to_bytes(8, "little"))
        for part in parts:
            file.write(part.data)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SearchIndex:
        """An index from its file, mapped into memory: processes that load the same file share it.

        Args:
            path: what `save` has written. All of it is read once, to check it.

        Raises:
            OSError: if it can't be read.
            ValueError: if it is damaged or no such file.
        """
        place = Path(path).absolute()
        raw = np.memmap(place, np.uint8, "r").view(np.ndarray) if place.stat().st_size else np.empty(0, np.uint8)
        prefix, content = raw[:_PREFIX].tobytes(), raw[_PREFIX:]
        if prefix != _MAGIC + zlib.crc32(content.data).to_bytes(8, "little"):
            raise ValueError(f"{place}: damaged, or no search index of this version; delete it")
        num_documents, counted, terms, postings, width = content[:40].view(np.int64).tolist()
        arrays, position = [], 40
        kinds = {"u8": terms, "i8": terms + 1, "f4": num_documents, "i4": postings, f"u{width}": postings}
        for kind, size in kinds.items():
            end = position + size * np.dtype(kind).itemsize
            arrays.append(content[position:end].view(kind))
            position = end
        return cls(num_documents, counted, *arrays, path=place)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path:
            return SearchIndex.load, (self.path,)
        return SearchIndex, (self.num_documents, self.counted, *self.arrays)


class _WeightedTerm(NamedTuple):
    """A term that the index has."""

    weight: np.float32  # w of the formula; for a term not of a query that of one that has it once
    postings: slice


def document_text(product: Product) -> str:
    """The text that a product is found by.

    Args:
        product: as the catalogue has it.

    Returns:
        Name, description, first bullet and the options with their values, in lower case.
    """
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    bullet = product.bullets[0] if product.bullets else ""
    return " ".join([product.name, product.description, bullet, options]).lower()


def load_or_build(documents: Iterable[str], cache_dir: str | os.PathLike[str]) -> SearchIndex:
    """The index of some texts from the cache; what isn't there is built and put there.

    Args:
        documents: texts, which are read twice where the index has to be built: a list, or anything that can be iterated
            over again.
        cache_dir: folder of cached indices, made where missing. Each file's name is a hash over the texts in order and
            the versions of the analyzer and the format.

    Returns:
        The index, mapped into memory. A damaged file is built anew, and a line on stderr tells of it.

    Raises:
        OSError: if the folder can't be read or written.
        ValueError: if ``documents`` can be read only once.
    """
    if isinstance(documents, Iterator):
        raise ValueError("documents has to be a list or something else that can be read twice, got an iterator")
    path = Path(cache_dir) / f"search-{_key(documents)}.index"
    if path.exists():
        try:
            return SearchIndex.load(path)
        except ValueError as error:
            print(f"search index: {error}; it is built anew", file=sys.stderr, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path) as file:  # which fails at once where nothing can be written
        SearchIndex.build(documents)._write(file)
    return SearchIndex.load(path)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file, which takes the place of another once it is complete."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            yield file
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _key(documents: Iterable[str]) -> str:
    """Name of what the index depends on."""
    digest = hashlib.blake2b(_MAGIC + analyzer.VERSION.encode(), digest_size=16)
    for text in documents:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def _hash(term: str) -> int:
    """64 bits that stand for a term."""
    return int.from_bytes(hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def _inverse_norms(length: np.ndarray) -> np.ndarray:
    """float32 1 / (k1 (1 - b + b dl/avgdl)) of each document, in Lucene's order of operations."""
    counted = np.count_nonzero(length)
    if not counted:
        return np.ones(len(length), np.float32)
    average = np.float32(length.sum() / counted)
    stored = quantised_lengths(length).astype(np.float32)
    return np.float32(1) / (_K1 * ((np.float32(1) - _B) + _B * stored / average))


def quantised_lengths(length: np.ndarray) -> np.ndarray:
    """Lengths as Lucene's byte has them: exact up to 40; above, four binary digits of what exceeds 24.

    Args:
        length: int64 [D], terms.

    Returns:
        int64 [D].
    """
    above = np.maximum(length - 24, 0)
    shift = np.maximum(np.frexp(above.astype(np.float64))[1] - 4, 0)
    return np.where(length < 24, length, 24 + (above >> shift << shift))


def _at_most_nth(scores: np.ndarray, n: int) -> np.float32:
    """A bound above 0 that at least ``n`` scores reach, where so many are above 0, and few more: found without sorting.

    The n-th best of the blocks' maxima is no better than the n-th best of all.
    """
    width = max(1, len(scores) // (16 * n))
    if width == 1:  # so few are sorted as fast
        return _ABOVE_0
    maxima = scores[: len(scores) // width * width].reshape(-1, width).max(axis=1)
    return max(np.partition(maxima, len(maxima) - n)[len(maxima) - n], _ABOVE_0)
