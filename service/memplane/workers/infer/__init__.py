"""INFER: one sample of a language model per call."""
