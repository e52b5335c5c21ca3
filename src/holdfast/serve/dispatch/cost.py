"""What a batch costs on one replica: `a * n + b` seconds for n items, learned from the batches it has computed. Pure.

    cost = Cost()
    cost.learn(8, 0.010)
    cost.expected(16), cost.slow(16)

Old batches are forgotten little by little, so that a machine that becomes slow is believed to be slow soon. A single
batch that took far longer than expected (the machine was elsewhere) counts for part of that only.
"""

from __future__ import annotations

__all__ = ["Cost"]

_FORGET = 0.97  #: what a batch still weighs after the next one
_OUTLIER = 4.0  #: times as long as expected, at which a batch counts no further
_SPREAD = 3.0  #: mean deviations above the expectation within which nearly all batches stay


class Cost:
    """The line through what batches took, and how far they scatter around it."""

    __slots__ = ("_n", "_nn", "_nt", "_spread", "_t", "_w", "a", "b", "most")

    def __init__(self) -> None:
        self._w = self._n = self._nn = self._t = self._nt = 0.0
        self.a = self.b = self._spread = 0.0
        self.most = 0  #: the largest batch so far

    @property
    def known(self) -> bool:
        """Was there a batch?"""
        return self.most > 0

    def learn(self, n: int, seconds: float) -> None:
        """A batch of n items took so long."""
        if self.known:
            expected = self.expected(n)
            away = abs(seconds - expected)
            self._spread += (min(away, _OUTLIER * expected) - self._spread) * 0.1
            seconds = min(seconds, _OUTLIER * expected)
        else:
            self._spread = seconds * 0.25
        self._w = self._w * _FORGET + 1.0
        self._n = self._n * _FORGET + n
        self._nn = self._nn * _FORGET + n * n
        self._t = self._t * _FORGET + seconds
        self._nt = self._nt * _FORGET + n * seconds
        self.most = max(self.most, n)
        self._fit()

    def _fit(self) -> None:
        mean_n, mean_t = self._n / self._w, self._t / self._w
        varies = self._nn / self._w - mean_n * mean_n
        if varies > 0.01 * mean_n * mean_n:
            a = (self._nt / self._w - mean_n * mean_t) / varies
        else:  # all of one size: half of it may be what every batch costs, whatever its size
            a = 0.5 * mean_t / mean_n
        # Neither can be negative; what a crossing of noise says beyond that is given to the other.
        self.a = min(max(a, 0.02 * mean_t / mean_n), mean_t / mean_n)
        self.b = mean_t - self.a * mean_n

    def expected(self, n: int) -> float:
        """Seconds that n items take."""
        return self.a * n + self.b

    def slow(self, n: int) -> float:
        """Seconds within which nearly every batch of n items is computed."""
        return self.expected(n) + _SPREAD * self._spread

    def fitting(self, seconds: float) -> int:
        """How many items are nearly always computed within so long: at least one, at most twice as many as ever.

        >>> cost = Cost()
        >>> for n in (1, 2, 4, 8):
        ...     cost.learn(n, 0.001 + 0.0005 * n)
        >>> 8 < cost.fitting(0.02) <= 16, cost.fitting(0.0)
        (True, 1)
        """
        if not self.known:
            return 1
        room = (seconds - self.b - _SPREAD * self._spread) / self.a if self.a > 0 else 2 * self.most
        return max(1, min(int(room), 2 * self.most))
