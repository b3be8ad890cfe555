"""What an open application is expected to cost in all, once part of it is known.

The prediction at arrival is a distribution: the logarithm of the cost is normal around ln(predicted) with a standard
deviation that the predictor states. Of an application whose known calls cost `known` already, only the part of the
distribution above `known` is still possible. The estimate is the median of that part:

    a = (ln known − ln predicted) / deviation,   P(cost > known) = Φ(−a)
    total = predicted · exp(deviation · z),      Φ(−z) = Φ(−a) / 2

Laws: with nothing known it is the prediction; it does not fall as more becomes known; it is never below what is known,
and above it by a share that shrinks towards nothing far beyond the prediction, where it is (for a ≥ FAR) the limit
known · exp(deviation · ln 2 / a). O(1).
"""

from __future__ import annotations

from math import erfc, exp, log, sqrt
from statistics import NormalDist

FAR = 30.0
_NORMAL = NormalDist()


def total_cost(predicted: float, deviation: float, known: float) -> float:
    """Token-iterations of all of it, from what was predicted and what is known to be needed, both above or at 0.

    `deviation` is that of the cost's natural logarithm, above 0.
    """
    if known <= 0 or predicted <= 0:
        return max(predicted, known)
    beyond = (log(known) - log(predicted)) / deviation
    if beyond >= FAR:
        return known * exp(deviation * log(2) / beyond)
    possible = erfc(beyond / sqrt(2)) / 2
    return max(known, predicted, predicted * exp(-deviation * _NORMAL.inv_cdf(possible / 2)))
