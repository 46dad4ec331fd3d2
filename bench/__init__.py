"""Benchmarks of gdsckpt beside what people use today, and beside the drive itself."""
