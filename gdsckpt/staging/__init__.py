"""Local files: the only write path, the only read path, and the commit of a directory."""
