"""What happens when things fail: processes that die, calls that fail, ground that gives way."""
