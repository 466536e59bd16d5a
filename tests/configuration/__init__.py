"""Tests of saga/configuration."""
