"""Scaffolds: a project with a first service, and one more service for a project, written as files that pass all checks.

Reading order: `plans` (which files, of what), `writing` (all of them or none), `templates/` (their texts).
"""
