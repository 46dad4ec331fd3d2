"""torch objects as bytes and names: pickling, storages, paths in a nest."""
