"""Tests of memplane; the folders mirror the packages."""
