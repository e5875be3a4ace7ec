"""Tests of the plugins."""
