"""Scaffolds: create a project with a first service, or add a service to a project. The generated files pass all checks.

`plans` decides which files to create, and writes all of them or none; `templates/` contains their contents.
"""
