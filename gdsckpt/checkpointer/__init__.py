"""The Checkpointer: saves of training state, step by step, and their way back."""
