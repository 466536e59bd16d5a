"""Scaffolds: a project with a first service, and another service for a project, written as files that pass all checks.

`plans` decides which files there are, and writes all of them or none; `templates/` has their texts.
"""
