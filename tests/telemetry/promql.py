"""Reads queries of Prometheus: which of our metrics, and which labels, they are about."""

import re

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_NAME = re.compile(r"\bsaga_[a-z_]+\b")
_MATCHED = re.compile(r"([a-z_]+)\s*(?:=~|!~|!=|=(?!=))")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")


def names_in(query: str) -> set[str]:
    """Our metrics in a query, by the names of their samples.

    >>> sorted(names_in('sum by (service) (rate(saga_a_total{what="saga_b"}[5m])) > saga_c'))
    ['saga_a_total', 'saga_c']
    """
    return set(_NAME.findall(_TEXT.sub('""', query)))


def labels_in(query: str) -> set[str]:
    """Labels that a query matches or groups by; without `le`, which each histogram has.

    >>> sorted(labels_in('sum by (service, le) (rate(saga_a_bucket{what="by (x)", stage=~"a|b"}[5m])) == 2'))
    ['service', 'stage', 'what']
    """
    bare = _TEXT.sub('""', query)
    inside = " ".join(re.findall(r"\{([^}]*)\}", bare))
    grouped = {label.strip() for labels in _GROUPED.findall(bare) for label in labels.split(",")}
    return {*_MATCHED.findall(inside), *grouped} - {"", "le"}
