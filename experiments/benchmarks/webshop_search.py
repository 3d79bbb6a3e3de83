"""Speed of the native WebShop search: ``python -m experiments.benchmarks.webshop_search``.

Documents of about 150 words and queries of 8 to 15 words, drawn by Zipf's law from a vocabulary that grows with the
catalogue. Building is CPU time of one thread, without drawing the documents; a query is the median over all queries,
each the best of several repeats. Memory is that of the index's arrays, which lie in a file; beside it what the process
grew by while the index was built.

1,000 / 10,000 / 100,000 documents, two cores of an AMD EPYC, shared with other jobs, Python 3.11: a query 0.11 / 0.28 /
1.1 ms, building 0.18 / 1.8 / 19 s, during which the process grows by 134 MB (100,000 alone); the index 0.7 / 6.2 / 61
MB, 0.3 / 1.9 / 15 ms to load.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from envs.webshop.search import SearchIndex


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is timed."""

    documents: tuple[int, ...] = (1_000, 10_000, 100_000)
    queries: int = 200
    repeats: int = 5
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Documents of a seed, the same each time they are read, never all in memory."""

    documents: int
    seed: int

    @property
    def words(self) -> int:
        """Size of the vocabulary: Heaps' law."""
        return int(300 * self.documents**0.5)

    def draw(self, rng: np.random.Generator, words: int) -> str:
        """A text: rank r of the vocabulary is drawn about as often as 1/r. Some words come with a comma."""
        ranks = np.exp(rng.random(words) * np.log(self.words)).astype(np.int64)
        return " ".join(_spell(rank) + ("," if rank % 7 == 0 else "") for rank in ranks.tolist())

    def __iter__(self) -> Iterator[str]:
        rng = np.random.default_rng(self.seed)
        return (self.draw(rng, int(rng.integers(100, 200))) for _ in range(self.documents))


def _spell(rank: int) -> str:
    """A pronounceable word for a rank, short for frequent ones."""
    word = ""
    while rank:
        rank, syllable = divmod(rank, 80)
        word += "bdfgklmnprstvzhj"[syllable // 5] + "aeiou"[syllable % 5]
    return word + ("s", "ing", "", "er")[len(word) % 4]


def measure(corpus: Corpus, benchmark: Benchmark) -> tuple[float, float, float, float, float]:
    """Seconds to build, milliseconds to load from the cache and to answer a query, and MB of the index and the peak."""
    start = time.process_time()
    for _ in corpus:
        pass
    drawing = time.process_time() - start
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    index = SearchIndex.build(corpus)
    building = time.process_time() - start - drawing
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3
    size = sum(array.nbytes for array in index.arrays) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/index"
        index.save(path)
        loading = statistics.median(_seconds(lambda: SearchIndex.load(path)) for _ in range(benchmark.repeats))
        index = SearchIndex.load(path)
        rng = np.random.default_rng(benchmark.seed + 1)
        queries = [corpus.draw(rng, int(rng.integers(8, 16))) for _ in range(benchmark.queries)]
        best = [min(_seconds(lambda q=query: index.search(q)) for _ in range(benchmark.repeats)) for query in queries]
    return building, 1e3 * loading, 1e3 * statistics.median(best), size, peak


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main(benchmark: Benchmark) -> None:
    """Print a row for each number of documents."""
    table = Table("documents", "build, CPU s", "load, ms", "query, ms", "index, MB", "peak while building, MB")
    for documents in benchmark.documents:
        figures = measure(Corpus(documents, benchmark.seed), benchmark)
        table.add_row(f"{documents:,}", *(f"{figure:,.3g}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
