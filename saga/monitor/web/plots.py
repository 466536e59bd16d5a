"""Small plots of transitions per minute. Pure."""

from collections.abc import Sequence

from markupsafe import Markup

from saga.monitor.views import MinuteRate

WIDTH, HEIGHT = 120, 24
MINUTE_MS = 60_000


def draw_bars(slices: Sequence[MinuteRate], newest_ms: int, minutes: int) -> Markup:
    """Return a plot of transitions per minute, oldest on the left. The lower part of a minute's bar shows failures.

    It contains only numbers, so nothing in it needs escaping.

    >>> print(draw_bars([MinuteRate(minute_ms=60_000, transitions=4, failures=1)], 60_001, 2))
    <svg class="plot" width="120" height="24" viewBox="0 0 120 24" role="img" aria-label="transitions a minute, \
the last 2 minutes: at most 4, now 4, failures 1"><rect class="bar" x="60.0" y="0.0" width="59.0" height="24.0"/>\
<rect class="bar bad" x="60.0" y="18.0" width="59.0" height="6.0"/></svg>
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
    head = f'<svg class="plot" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    return Markup(f'{head} aria-label="{label}">{"".join(parts)}</svg>')
