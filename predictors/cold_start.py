"""Predictions from the first finished call on: running means that lean on their neighbours while they are young.

With n observations of a key, their mean m, and the estimate of the key's parent e', the estimate of the key is

    e = w·m + (1 − w)·e',   w = n / (n + k)

(shrinkage, as in empirical Bayes: k is the number of observations that the parent's word is worth). The chain is
(application type, stage) → application type → all calls → a prior. Means are taken of logarithms, since lengths
and costs spread over orders of magnitude; the estimate is therefore a geometric mean, near the median.

Laws: an estimate is finite and positive whatever was observed; it lies between the prior and the extremes of
what was observed; memory is bounded: beyond `max_keys` the key that was unused for longest is forgotten.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

DEFAULT_PRIOR_TOKENS = 128
DEFAULT_SHRINKAGE = 4.0
MAX_KEYS = 10_000
_STAGE_NUMBER = "0123456789"
_STAGE_SEPARATORS = "-_.:"


def stage_of(name: str) -> str:
    """The stage that a call's name stands for: `map12`, `map_12` and `map1_2` are of the stage `map`, as is `map`."""
    return name.rstrip(_STAGE_NUMBER + _STAGE_SEPARATORS)


class OutputLengthHistory:
    """Predicts the output tokens of a call from finished calls of the same application type and stage.

    `prior_tokens` is the answer while nothing has finished; `shrinkage` is k in the module's formula.
    """

    def __init__(
        self,
        prior_tokens: int = DEFAULT_PRIOR_TOKENS,
        shrinkage: float = DEFAULT_SHRINKAGE,
        max_keys: int = MAX_KEYS,
    ) -> None:
        if prior_tokens < 1:
            raise ValueError(f"prior_tokens must be at least 1, got {prior_tokens}")
        self.prior_tokens = prior_tokens
        self._stages = _LogMeans(shrinkage, max_keys)
        self._types = _LogMeans(shrinkage, max_keys)
        self._all = _LogMeans(shrinkage, max_keys)

    def observe(self, application_type: str, stage: str, output_tokens: int) -> None:
        """A call finished with `output_tokens` a sequence (0 counts as 1). Raises ValueError below 0."""
        if output_tokens < 0:
            raise ValueError(f"output_tokens must not be negative, got {output_tokens}")
        log_tokens = math.log(max(1, output_tokens))
        self._stages.add((application_type, stage), log_tokens)
        self._types.add(application_type, log_tokens)
        self._all.add(None, log_tokens)

    def predict(self, application_type: str, stage: str, max_tokens: int) -> int:
        """Output tokens of a sequence, in [1, max_tokens]. Raises ValueError when `max_tokens` is below 1."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
        overall = self._all.shrunk(None, math.log(self.prior_tokens))
        of_type = self._types.shrunk(application_type, overall)
        of_stage = self._stages.shrunk((application_type, stage), of_type)
        return min(max_tokens, max(1, round(math.exp(of_stage))))


class ApplicationCostHistory:
    """Predicts the total cost (token-iterations) of an open application from finished ones of its type."""

    def __init__(self, shrinkage: float = DEFAULT_SHRINKAGE, max_keys: int = MAX_KEYS) -> None:
        self._types = _LogMeans(shrinkage, max_keys)
        self._all = _LogMeans(shrinkage, max_keys)

    def observe(self, application_type: str, cost: float) -> None:
        """An application ended having cost this much. Raises ValueError unless it is finite and positive."""
        if not 0 < cost < math.inf:
            raise ValueError(f"cost must be finite and positive, got {cost}")
        self._types.add(application_type, math.log(cost))
        self._all.add(None, math.log(cost))

    def predict(self, application_type: str, general: float | None = None) -> float | None:
        """Token-iterations, or None while no application has ended.

        `general`, a positive cost that is known from elsewhere, takes the place of everybody's mean.
        """
        overall = self._all.mean(None) if general is None else math.log(general)
        if overall is None:
            return None
        return math.exp(self._types.shrunk(application_type, overall))


@dataclass(slots=True)
class _RunningMean:
    count: int = 0
    mean: float = 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.mean += (value - self.mean) / self.count


class _LogMeans:
    """Running means by key; the key unused for longest goes when there are more than `max_keys`."""

    def __init__(self, shrinkage: float, max_keys: int) -> None:
        if not 0 < shrinkage < math.inf:
            raise ValueError(f"shrinkage must be finite and positive, got {shrinkage}")
        if max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, got {max_keys}")
        self._shrinkage = shrinkage
        self._max_keys = max_keys
        self._means: OrderedDict[Hashable, _RunningMean] = OrderedDict()

    def add(self, key: Hashable, value: float) -> None:
        self._means.setdefault(key, _RunningMean()).add(value)
        self._means.move_to_end(key)
        if len(self._means) > self._max_keys:
            self._means.popitem(last=False)

    def __len__(self) -> int:
        return len(self._means)

    def mean(self, key: Hashable) -> float | None:
        known = self._means.get(key)
        return None if known is None else known.mean

    def shrunk(self, key: Hashable, parent: float) -> float:
        """w·m + (1 − w)·parent with w = n / (n + k); `parent` itself for a key without observations."""
        known = self._means.get(key)
        if known is None:
            return parent
        self._means.move_to_end(key)
        weight = known.count / (known.count + self._shrinkage)
        return weight * known.mean + (1 - weight) * parent
