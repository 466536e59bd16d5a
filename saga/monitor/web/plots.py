"""Small plots of values per minute, drawn by pure functions. The plots contain only numbers and text that is part of
this program, so nothing needs to be escaped."""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from saga.monitor.views import MinuteActivity, MinuteRate

WIDTH, HEIGHT = 120, 24
MINUTE_MS = 60_000
_HEAD = f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img"'


def draw_bars(slices: Sequence[MinuteRate] | Sequence[MinuteActivity], newest_ms: int, minutes: int) -> Markup:
    """Return a plot of the transitions in each minute, oldest on the left. The lower part of a minute's bar stands for
    failures.

    >>> plot = draw_bars([MinuteRate(minute_ms=60_000, transitions=4, failures=1)], 60_001, 2)
    >>> print(str(plot).replace("><", ">\\n<"))
    <svg class="plot" viewBox="0 0 120 24" preserveAspectRatio="none" role="img" \
aria-label="transitions a minute, the last 2 minutes: at most 4, now 4, failures 1">
    <rect class="bar" x="60.0" y="0.0" width="59.0" height="24.0"/>
    <rect class="bar bad" x="60.0" y="18.0" width="59.0" height="6.0"/>
    </svg>
    """
    last = newest_ms - newest_ms % MINUTE_MS
    known = {(last - each.minute_ms) // MINUTE_MS: each for each in slices}
    shown = [known[ago] for ago in range(minutes) if ago in known]
    most = max((each.transitions for each in shown), default=0)
    width = WIDTH / max(1, minutes)
    parts = []
    for ago in range(minutes - 1, -1, -1):
        each = known.get(ago)
        if each is None or not each.transitions:
            continue
        x = (minutes - 1 - ago) * width
        for kind, count in (("bar", each.transitions), ("bar bad", min(each.failures, each.transitions))):
            height = HEIGHT * count / most
            if count:
                parts.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{HEIGHT - height:.1f}" width="{max(0.5, width - 1):.1f}" '
                    f'height="{height:.1f}"/>'
                )
    now = known[0].transitions if 0 in known else 0
    failures = sum(each.failures for each in shown)
    label = f"transitions a minute, the last {minutes} minutes: at most {most}, now {now}, failures {failures}"
    return Markup(f'{_HEAD} aria-label="{label}">{"".join(parts)}</svg>')


def draw_line(values: Mapping[int, float], newest_ms: int, minutes: int, what: str) -> Markup:
    """Return a plot of a value in each minute, oldest on the left. Minutes without a value are gaps.

    Args:
        values: Values by minute, in milliseconds since 1970.
        what: What the value is, and its unit.

    >>> print(str(draw_line({0: 2, 60_000: 4}, 60_001, 2, "lag in messages")).replace("><", ">\\n<"))
    <svg class="plot" viewBox="0 0 120 24" preserveAspectRatio="none" role="img" \
aria-label="lag in messages, the last 2 minutes: at most 4, now 4">
    <path class="line" d="M0.0 12.5h60.0V2.0h60.0"/>
    </svg>
    """
    last = newest_ms - newest_ms % MINUTE_MS
    shown = {ago: values[at] for ago in range(minutes) if (at := last - ago * MINUTE_MS) in values}
    most, width = max(shown.values(), default=0), WIDTH / max(1, minutes)
    parts, before = list[str](), -1
    for ago in sorted(shown, reverse=True):
        y = HEIGHT - 1 - (HEIGHT - 3) * shown[ago] / most if most else HEIGHT - 1
        begin = f"V{y:.1f}" if before == ago + 1 else f"M{(minutes - 1 - ago) * width:.1f} {y:.1f}"
        parts.append(f"{begin}h{width:.1f}")
        before = ago
    now = f"{shown[min(shown)]:,.0f}" if shown else "not known"
    label = f"{what}, the last {minutes} minutes: at most {most:,.0f}, now {now}"
    return Markup(f'{_HEAD} aria-label="{label}"><path class="line" d="{"".join(parts)}"/></svg>')
