"""Services while they are written: found in a folder, run side by side, and started again when something changes.

Reading order: `folder` (which services there are, and what has changed), `crew` (their processes).
"""
