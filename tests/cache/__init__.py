"""Tests of the LTM cache."""
