"""Tests of the pytest plugin: how tests with a world are run, shrunk and reported."""
