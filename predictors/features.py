"""What a model sees of a prompt: how long it is and how it is built, and which terms stand in it.

A term is a run of letters of any script (lower case), one ideograph or syllable of a script that writes without
spaces, one digit, or one other visible character. There are no stop words and no shortest term, so every text that
holds a visible character has terms, and a vocabulary is empty only if all texts are blank.

Laws: a text is cut at MAX_CHARACTERS first, so that one text costs a bounded time; features are finite whatever the
text; a text's features do not depend on the texts beside it; columns that hardly vary in training are not blown up
(`MIN_SCALE`), and no column goes beyond CLIP standard deviations. Weights are (1 + ln tf)·idf with
idf = ln((1 + n) / (1 + df)) + 1, each text's scaled to length 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

Array = NDArray[np.float64]

MAX_CHARACTERS = 4_000
MAX_TERMS = 2_000
MIN_SCALE = 0.2
CLIP = 3.0
LENGTH_FEATURES = (
    "characters",
    "words",
    "distinct_words",
    "sentences",
    "lines",
    "numbers",
    "distinct_numbers",
    "commas",
    "capitalized",
    "word_length",
    "largest_number",
    "questions",
    "operators",
    "brackets",
    "colons",
    "variety",
    "conjunctions",
    "first_line",
    "beyond_first_line",
    "words_beyond_first_line",
    "new_beyond_first_line",
    "new_numbers_beyond_first_line",
    "first_line_numbers",
    "number_words",
    "computations",
)
SIZE_COLUMNS = tuple(
    map(LENGTH_FEATURES.index, ("characters", "words", "beyond_first_line", "words_beyond_first_line"))
)
"""Those that say how much there is: in all, and beyond the first line, which often is the question about the rest."""
NUMBER_WORDS = frozenset(
    (
        *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "twenty"),
        *("half", "third", "quarter", "twice", "double", "triple", "dozen"),
    )
)
_UNSPACED = "\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\u0e00-\u0eff"
_TERM = re.compile(rf"[^\W\d_{_UNSPACED}]+|[{_UNSPACED}]|\d|[^\w\s]|_")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")  # a run of signs is counted by its last: time stays linear
_COMPUTATION = re.compile(r"[-+*/x×÷]\s*[$(£€]*\d[\d.,)%]*[^=\n]{0,40}?=\s*[$(£€]?\d")
"""An operation on numbers whose result is stated: "3 x 4 apples = 12"."""
_MAX_DIGITS = 30


def length_features(text: str) -> list[float]:
    """The LENGTH_FEATURES of a text; counts as ln(1 + count)."""
    text = text[:MAX_CHARACTERS]
    words = [term for term in _as_written(text) if term[0].isalpha()]
    lower = list(map(str.lower, words))
    distinct = set(lower)
    numbers = _NUMBER.findall(text)
    count = text.count
    many = max(1, len(words))
    counts = (
        len(text),
        len(words),
        len(distinct),
        len(_SENTENCE_END.findall(text)),
        count("\n"),
        len(numbers),
        len(set(numbers)),
        count(",") + count(";"),
        sum(map(str.isupper, map(itemgetter(0), words))),
    )
    more_counts = (
        count("?"),
        count("=") + count("+") + count("-") + count("*") + count("/") + count("<") + count(">"),
        count("(") + count(")") + count("[") + count("]") + count("{") + count("}"),
        count(":"),
    )
    return [
        *map(math.log1p, counts),
        sum(map(len, words)) / many,
        math.log1p(max(map(_value, numbers), default=0.0)),
        *map(math.log1p, more_counts),
        len(distinct) / many,
        math.log1p(lower.count("and") + lower.count("or")),
        *_first_line_features(text, distinct, numbers),
        math.log1p(sum(map(NUMBER_WORDS.__contains__, lower))),
        math.log1p(len(_COMPUTATION.findall(text))),
    ]


def _first_line_features(text: str, distinct: set[str], numbers: list[str]) -> list[float]:
    """Of the first line and of what the rest adds to it: an answer adds facts to its question, a solution results."""
    first_line, _, rest = text.partition("\n")
    asked = set(map(str.lower, _TERM.findall(first_line)))
    given = set(_NUMBER.findall(first_line))
    counts = (
        len(first_line),
        len(text) - len(first_line),
        len(rest.split()),
        len(distinct - asked),
        len(set(numbers) - given),
        len(given),
    )
    return list(map(math.log1p, counts))


def terms(text: str) -> tuple[str, ...]:
    """The terms of a text in lower case, in order, cut at MAX_CHARACTERS."""
    return _in_lower_case(text[:MAX_CHARACTERS])


@lru_cache(maxsize=4)  # one prediction asks for the same text's terms more than once
def _in_lower_case(text: str) -> tuple[str, ...]:
    return tuple(map(str.lower, _as_written(text)))


@lru_cache(maxsize=4)
def _as_written(text: str) -> tuple[str, ...]:
    return tuple(_TERM.findall(text))


class TextFeatures(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Texts to rows: the standardized length features, then the weights of the vocabulary's terms.

    The vocabulary holds the `max_terms` terms that stand in most texts (ties: alphabetically).
    """

    def __init__(self, max_terms: int = MAX_TERMS) -> None:
        self.max_terms = max_terms

    def fit(self, texts: Sequence[str], y: object = None) -> Self:
        """Learn vocabulary, document frequencies and the length features' means and scales."""
        if not len(texts):
            raise ValueError("no texts to learn features from")
        frequencies = Counter(term for text in texts for term in set(terms(text)))
        kept = sorted(frequencies.items(), key=lambda item: (-item[1], item[0]))[: self.max_terms]
        self.terms_ = sorted(term for term, _ in kept)
        self.idf_ = np.array([math.log((1 + len(texts)) / (1 + frequencies[term])) + 1 for term in self.terms_])
        lengths = np.array([length_features(text) for text in texts])
        self.mean_ = lengths.mean(axis=0)
        self.scale_ = np.maximum(lengths.std(axis=0), MIN_SCALE)
        return self._indexed()

    def transform(self, texts: Sequence[str]) -> Array:
        """Rows of len(LENGTH_FEATURES) + len(terms_) numbers."""
        check_is_fitted(self)
        rows = np.zeros((len(texts), len(LENGTH_FEATURES) + len(self.terms_)))
        for row, text in zip(rows, texts, strict=True):
            lengths, columns, weights = self.transform_one(text)
            row[: len(LENGTH_FEATURES)] = lengths
            row[len(LENGTH_FEATURES) + columns] = weights
        return rows

    def transform_one(self, text: str) -> tuple[Array, NDArray[np.intp], Array]:
        """The standardized length features, and the known terms of one text: their columns and weights."""
        lengths = (np.array(length_features(text)) - self.mean_) * self._inverse_scale
        np.clip(lengths, -CLIP, CLIP, out=lengths)
        index = self._index
        found = [(index[term], count) for term, count in Counter(terms(text)).items() if term in index]
        columns = np.array([column for column, _ in found], dtype=np.intp)
        weights = (np.log([count for _, count in found]) + 1) * self.idf_[columns]
        norm = math.sqrt(weights @ weights)
        return lengths, columns, weights / norm if norm else weights

    def knows(self, text: str) -> bool:
        """Whether it holds a term of the vocabulary."""
        return not self._index.keys().isdisjoint(terms(text))

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """What was learnt, as JSON and as arrays."""
        check_is_fitted(self)
        return {"terms": self.terms_}, {"idf": self.idf_, "mean": self.mean_, "scale": self.scale_}

    @classmethod
    def from_state(cls, document: dict[str, Any], arrays: dict[str, Array]) -> Self:
        """The inverse of `state`. Raises KeyError, TypeError or ValueError when they do not fit together."""
        features = cls(max_terms=max(1, len(document["terms"])))
        features.terms_ = [str(term) for term in document["terms"]]
        features.idf_, features.mean_, features.scale_ = arrays["idf"], arrays["mean"], arrays["scale"]
        shapes = features.idf_.shape, features.mean_.shape, features.scale_.shape
        if shapes != ((len(features.terms_),), (len(LENGTH_FEATURES),), (len(LENGTH_FEATURES),)):
            raise ValueError(f"the features' arrays have the shapes {shapes}")
        if not np.all(features.scale_ > 0):
            raise ValueError("the features' scales must be positive")
        return features._indexed()

    def _indexed(self) -> Self:
        self._index = {term: column for column, term in enumerate(self.terms_)}
        self._inverse_scale = 1 / self.scale_
        return self


def _value(number: str) -> float:
    try:
        return float(number[:_MAX_DIGITS].replace(",", ""))
    except ValueError:
        return 0.0
