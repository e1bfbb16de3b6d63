"""The dense part of a model: all of it here, some stages of it, or elsewhere."""
