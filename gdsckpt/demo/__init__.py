"""The demo: a small language model is trained, saved, thrown away, loaded and trained on."""
