"""Monitor: sagas of all services as they run, folded from the topic on which services tell their transitions. It only
reads: it may die, lag, or begin anew, and no service notices.

Reading order: `views.py` (what can be asked), `known.py` (one saga), `standing.py` (when it is stuck), `folds.py` (what
a transition changes), `answers.py`; then the outside: `reader.py`, `serving.py`, `asking.py`, `web/`.
"""
