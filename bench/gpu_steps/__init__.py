"""Steps of ``bench/gpu_check.py``, each a process: ``python -m bench.gpu_steps.NAME``."""
