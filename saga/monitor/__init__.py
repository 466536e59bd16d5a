"""Monitor: shows the sagas of all services, from the transition events that they publish. It only reads. It may crash,
lag or start again, and no service notices.

Reading order: `views.py` (what can be asked), `saga_index.py` (what is stored of a saga), `stuck_detection.py`,
`read_model.py` (how a transition event changes it), `queries.py`; then the edges: `reader.py`, `server.py`,
`web/`, `shared/`.
"""
