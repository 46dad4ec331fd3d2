"""Engines move bytes between memory and one local file."""
