"""Listeners of one runtime, several of them, none of which can harm it."""

import logging

from saga.observe.moments import Moment, Report

log = logging.getLogger("saga.observe")


def to_all(*listeners: Report) -> Report:
    """Make a listener that tells each of these. What one raises stays here: the first time it is logged, with its
    traceback."""
    told: set[int] = set()

    def report(moment: Moment) -> None:
        for number, listener in enumerate(listeners):
            try:
                listener(moment)
            except Exception:  # a message is handled whether or not somebody can count it
                if number not in told:
                    told.add(number)
                    log.exception("a listener of moments fails; it is told of the next ones all the same")

    return report
