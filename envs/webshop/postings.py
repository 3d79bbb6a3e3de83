"""Which documents have which term: collected block by block, so that building takes little more memory than the result.

A block is sorted by term and keeps 3 bytes for most postings; the merged postings take 5.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from envs.webshop import analyzer

MOST_DOCUMENTS = 2048  # of a block


class Block(NamedTuple):
    """Postings of some documents by term, t terms and p postings."""

    first: int  # document
    terms: np.ndarray  # int32 [t], ascending
    counts: np.ndarray  # uint16 [t], the term's documents
    documents: np.ndarray  # uint16 [p], behind the first
    frequencies: np.ndarray  # the narrowest unsigned [p]


def sorted_by_term(texts: Sequence[str], vocabulary: Mapping[str, int], lengths: array[int]) -> Block:
    """The next documents' postings.

    Args:
        texts: of the documents, `MOST_DOCUMENTS` at most.
        vocabulary: the terms' numbers; one that numbers new terms when they are looked up.
        lengths: in terms, of the documents so far, behind which those of these documents are put.
    """
    first = len(lengths)
    numbers, frequencies, distinct = array("i"), array("i"), array("i")
    for text in texts:
        counts = Counter(analyzer.terms(text))
        numbers.extend(map(vocabulary.__getitem__, counts))
        frequencies.extend(counts.values())
        lengths.append(counts.total())
        distinct.append(len(counts))
    term, frequency = np.frombuffer(numbers, np.int32), np.frombuffer(frequencies, np.int32)
    order = np.argsort(term, kind="stable")
    document = np.repeat(np.arange(len(texts), dtype=np.uint16), np.frombuffer(distinct, np.int32))[order]
    terms, counts = np.unique(term, return_counts=True)
    return Block(first, terms, counts.astype(np.uint16), document, frequency[order].astype(_narrowest(frequency)))


def merged(blocks: list[Block], rank: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The postings of all blocks by term.

    Args:
        blocks: in the documents' order; the list is empty afterwards.
        rank: [T] the place that each term of the vocabulary is to have.

    Returns:
        As `SearchIndex` has them: offsets int64 [T + 1], documents int32 [P], frequencies [P].
    """
    sizes = np.zeros(len(rank) + 1, np.int64)
    for block in blocks:
        sizes[1 + rank[block.terms]] += block.counts
    offsets = np.cumsum(sizes)
    documents = np.empty(offsets[-1], np.int32)
    frequencies = np.empty(offsets[-1], max((block.frequencies.dtype for block in blocks), default=np.dtype(np.uint8)))
    free = offsets[:-1].copy()  # where each term's next posting goes
    while blocks:
        block = blocks.pop(0)  # so that its memory is free as soon as it is copied
        ranks, counts = rank[block.terms], block.counts.astype(np.int64)
        places = np.repeat(free[ranks] - (np.cumsum(counts) - counts), counts) + np.arange(len(block.documents))
        documents[places] = block.first + block.documents.astype(np.int32)
        frequencies[places] = block.frequencies
        free[ranks] += counts
    return offsets, documents, frequencies


def _narrowest(frequency: np.ndarray) -> np.dtype:
    """The narrowest unsigned type that holds them."""
    return np.min_scalar_type(frequency.max(initial=0))
