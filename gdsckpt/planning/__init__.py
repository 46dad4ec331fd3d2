"""The planner: how large checkpoints are, how often to save, onto which storage, at what price.

Pure functions over plain values: nothing here opens a file but what reads a scenario, prices or
reports, and nothing touches a device. torch is imported by ``live_model`` alone.
"""
