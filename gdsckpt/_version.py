"""The version, in a module of its own: nothing else has to be imported to know it."""

__version__ = "0.1.0"
