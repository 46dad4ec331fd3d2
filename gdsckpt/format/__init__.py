"""The file format: pure functions over bytes and numbers, no files, no device, no torch.

``docs/format.md`` is the specification; the modules here are its only implementation:
``layout`` places records, ``zipfmt`` encodes and decodes zip structures, ``table`` is the chunk
table, ``footer`` the closing comment, ``skeleton`` the small archive that torch unpickles from,
``manifest`` the commit record of a directory.
"""
