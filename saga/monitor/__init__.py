"""Monitor: sagas of all services as they run, folded from the topic on which services tell their transitions. It only
reads: it may die, lag, or begin anew, and no service notices. `views.py` says what can be asked of it.
"""
