"""The monitor, which shows the sagas of all services, based on the transition events that the services publish. It only
reads. It may crash, lag or restart without any effect on services.

Reading order: `views.py` (the possible queries), `saga_index.py` (how a saga is stored), `stuck_detection.py`,
`read_model.py` (how a transition event changes it), `queries.py`; then the edges: `reader.py`, `server.py`, `web/`,
`shared/`.
"""
