"""The ``gdsckpt`` command: one file per command, and ``output``, the only place that prints."""
