"""Passages that an answer can be checked against, found by the words that they share with a question (TF-IDF)."""

from __future__ import annotations

from collections.abc import Sequence

PASSAGES = (
    "Harrow Bay is a harbour town of 8,200 people on the west coast. Its market is held on Saturdays.",
    "The ferry from Harrow Bay to the island of Tern has sailed since 1911. The crossing takes forty minutes.",
    "The ferry that does the work today is the Clementine. She was built in 1978 for sixty passengers.",
    "The island of Tern has 640 inhabitants, one school and one doctor, who comes on Tuesdays and Fridays.",
    "The lighthouse of Tern was lit for the first time in 1873. Since 1988 it has run without a keeper.",
    "The pier on Tern rests on piles of 1954. A survey gave them eight years at most.",
    "In a poll in March, 268 of 412 islanders were for a battery ferry, which would cost 3.9 million.",
    "Puffins nest on the northern cliffs of Tern from April to the end of July. Walkers keep to the path then.",
)


class Passages:
    """Texts with an index. Raises ValueError when none of them has a word."""

    def __init__(self, texts: Sequence[str] = PASSAGES) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer  # takes a second to import

        self.texts = tuple(texts)
        self._vectorizer = TfidfVectorizer(stop_words="english", sublinear_tf=True)
        self._vectors = self._vectorizer.fit_transform(self.texts)

    def nearest(self, question: str, most: int = 2) -> list[str]:
        """At most `most` passages that share a word with `question`, the most similar first."""
        similarity = (self._vectors @ self._vectorizer.transform([question]).T).toarray().ravel()
        order = sorted(range(len(self.texts)), key=lambda place: -similarity[place])
        return [self.texts[place] for place in order[:most] if similarity[place] > 0]
