"""Between files or memory and an object store: planned here, moved in parallel, checked end to end.

torch is never imported from here.
"""
