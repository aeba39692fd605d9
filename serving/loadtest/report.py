"""What a load test found: as text, as JSON, and whether it is good enough."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from emberline.serving.loadtest.tally import Tally

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}
LATE_S, LATE_SHARE = 1e-3, 0.2
"""The load test was too slow where one request in a hundred began later than this, and by more than this share of the latency of one in a hundred."""
_MOST_LINES = 20
_STEPS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of a load test.

    Args:
        settings: what was asked, by name, as JSON shows it.
        steps: one for each rate, in order.
        max_p99_s: the longest latency that 99 of 100 requests may have; None for any.
        max_errors: the share of requests that may fail; None for any.
        is_interrupted: somebody stopped it.
    """

    settings: dict[str, Any]
    steps: Sequence[Tally]
    max_p99_s: float | None = None
    max_errors: float | None = None
    is_interrupted: bool = False

    def broken(self) -> list[str]:
        """What was to hold and did not, a sentence each."""
        found = []
        for step in self.steps:
            found += [f"{_rate(step)}: {problem}" for problem in self._problems(step)]
        if not any(step.asked for step in self.steps) and (self.max_p99_s is not None or self.max_errors is not None):
            found.append("no request was measured")
        return found

    def _problems(self, step: Tally) -> list[str]:
        found = []
        failed = sum(step.errors.values())
        if self.max_p99_s is not None and step.asked:
            p99_s = step.latencies.quantile(0.99, more=failed)
            if too_slow(step):
                found.append("the latency is not known, as the load test itself was too slow")
            elif not p99_s <= self.max_p99_s:
                told = "above any, as so many requests failed" if math.isinf(p99_s) else f"{p99_s * 1e3:,.2f} ms"
                found.append(f"p99 is {told}; it may be {self.max_p99_s * 1e3:g} ms")
        if self.max_errors is not None and failed > self.max_errors * step.asked:
            found.append(f"{failed:,} of {step.asked:,} requests failed ({failed / step.asked:.2%}); it may be {self.max_errors:.2%}")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; latencies are null where they are not known."""
        steps = [_step(step) for step in self.steps]
        return {**self.settings, "interrupted": self.is_interrupted, "broken": self.broken(), "steps": steps}

    def to_text(self) -> str:
        """A table with a line for each step, what there is to say about each, and a line for each second, or for several."""
        lines = [f"{'rate':>10} {'answered':>10} {'requests':>10} {'errors':>8}" + "".join(f"{name:>10}" for name in [*SHARES, "max"])]
        lines.append(f"{'':>10} {'a second':>10} {'':>10} {'':>8}" + f"{'ms':>10}" * 5)
        for step in self.steps:
            errors = sum(step.errors.values())
            lines.append(f"{_rate(step):>10} {step.good / step.took_s:>10,.1f} {step.asked:>10,} {errors:>8,}" + _latency_text(step))
        for step in self.steps:
            lines += ["", f"at {_rate(step)}" + (" a second" if step.rate else "")]
            lines += [f"  {line}" for line in [*_remarks(step), *_by_second(step)]]
        lines += [f"broken: {problem}" for problem in self.broken()]
        if self.is_interrupted:
            lines.append("It was stopped before its end.")
        return "\n".join(lines)


def too_slow(step: Tally) -> bool:
    """Whether requests began so late that the latencies tell of the load test and not of the server."""
    if step.rate is None or not step.delays.count:
        return False
    late_s = step.delays.quantile(0.99)
    return late_s > LATE_S and not late_s <= LATE_SHARE * step.latencies.quantile(0.99)


def _rate(step: Tally) -> str:
    return "max" if step.rate is None else f"{step.rate:,g}"


def _latencies(step: Tally) -> dict[str, float] | None:
    """Milliseconds by name; None where they are not known."""
    if too_slow(step) or not step.latencies.count:
        return None
    found = {name: step.latencies.quantile(share) for name, share in SHARES.items()}
    found |= {"max": step.latencies.largest_s, "mean": step.latencies.total_s / step.latencies.count}
    return {name: round(value * 1e3, 4) for name, value in found.items()}


def _latency_text(step: Tally) -> str:
    found = _latencies(step)
    if found is None:
        return "   not told: the load test was too slow" if too_slow(step) else f"{'-':>10}" * 5
    return "".join(f"{found[name]:>10,.2f}" for name in [*SHARES, "max"])


def _remarks(step: Tally) -> list[str]:
    late_ms, most_ms = step.delays.quantile(0.99) * 1e3, step.delays.largest_s * 1e3
    cpu = f"the load test took {step.cpu_s / max(step.took_s, 1e-9):.0%} of a CPU"
    found = []
    if too_slow(step):
        found.append(
            f"THE LOAD TEST WAS TOO SLOW: one request in 100 began {late_ms:,.1f} ms late or more, {most_ms:,.1f} at most; {cpu}. "
            "Latencies would be its own. Ask for less, leave it more of a CPU, or start several"
        )
    elif step.rate is not None and step.delays.count:
        found.append(f"requests began up to {late_ms:,.2f} ms late in 99 of 100 cases, {most_ms:,.2f} at most; {cpu}")
    elif step.rate is None:
        found.append(cpu + (": the server may be able to answer more" if step.cpu_s > 0.9 * step.took_s else ""))
    if step.errors:
        found.append(
            "errors: " + ", ".join(f"{count:,} {kind}" for kind, count in step.errors.most_common()) + "; latencies are of good answers only"
        )
    if step.waited:
        found.append(f"{step.waited:,} requests waited for a free connection, which their latencies include (--connections)")
    if step.under_way:
        found.append(f"{step.under_way:,} requests were given up as it was stopped")
    if step.versions:
        found.append("versions: " + ", ".join(f"{version} gave {count:,}" for version, count in sorted(step.versions.items())))
    return found


def _by_second(step: Tally) -> list[str]:
    """A line for each second, or for several where there would be too many."""
    if not step.seconds:
        return []
    per = next((per_s for per_s in _STEPS_S if len(step.seconds) <= per_s * _MOST_LINES), _STEPS_S[-1])
    lines = [f"{'second':>8} {'asked':>9} {'errors':>8} {'p50':>9} {'p99':>9} {'max, ms':>9}"]
    hides = too_slow(step)
    for start in range(0, len(step.seconds), per):
        part = step.seconds[start : start + per]
        asked, errors = sum(one.asked for one in part), sum(sum(one.errors.values()) for one in part)
        slowest = max(part, key=lambda one: one.latencies.quantile(0.99) if one.latencies.count else -1.0).latencies
        told = [slowest.quantile(0.5), slowest.quantile(0.99), slowest.largest_s] if slowest.count and not hides else []
        lines.append(f"{start:>8} {asked:>9,} {errors:>8,}" + ("".join(f" {one * 1e3:>9,.2f}" for one in told) or f" {'-':>9}" * 3))
    if per > 1:
        lines.append(f"a line for {per} seconds; latencies of the slowest of them")
    return lines


def _step(step: Tally) -> dict[str, Any]:
    hides = too_slow(step)
    return {
        "rate_asked": step.rate,
        "rate_begun": round(step.asked / step.took_s, 3) if step.took_s else 0.0,
        "rate_answered": round(step.good / step.took_s, 3) if step.took_s else 0.0,
        "seconds": round(step.took_s, 3),
        "asked": step.asked,
        "good": step.good,
        "errors": dict(step.errors),
        "given_up": step.under_way,
        "versions": dict(step.versions),
        "latency_ms": _latencies(step),
        "load_test": {
            "was_too_slow": hides,
            "p99_late_ms": _ms(step.delays.quantile(0.99)),
            "most_late_ms": _ms(step.delays.largest_s),
            "cpu_share": round(step.cpu_s / step.took_s, 3) if step.took_s else 0.0,
            "waited_for_a_connection": step.waited,
        },
        "by_second": [
            {
                "second": number,
                "asked": one.asked,
                "good": one.latencies.count,
                "errors": dict(one.errors),
                "p50_ms": None if hides else _ms(one.latencies.quantile(0.5)),
                "p99_ms": None if hides else _ms(one.latencies.quantile(0.99)),
                "max_ms": None if hides else _ms(one.latencies.largest_s),
            }
            for number, one in enumerate(step.seconds)
        ],
        "histogram_ms": [] if hides else [[_ms(low_s), _ms(high_s), count] for low_s, high_s, count in step.latencies.buckets()],
    }


def _ms(time_s: float) -> float | None:
    return round(time_s * 1e3, 4) if math.isfinite(time_s) else None
