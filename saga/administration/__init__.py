"""What people ask of brokers and stores that services use: topics as the contracts want them, health, positions.

Pure: `plans` (what is to be done about topics), `findings` (what is not as it should be), `moves` (which positions may
move). `opening` reaches the broker; `positions` and `doctor` ask it, and `doctor` the stores too.
"""
