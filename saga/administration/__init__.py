"""Tools on brokers and stores that services use: topics as the contracts want them, health, positions.

Pure: `topic_plans` (topics that services want, and changes that bring them there), `findings` (anything
not as it should be), `position_moves` (which positions may move). `positions` and `doctor` ask the broker, and `doctor`
the stores too.
"""
