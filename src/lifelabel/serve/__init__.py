"""A web server for a trained model: a page and a JSON API. docs/serve.md describes it.

This package imports nothing here: the processes that decode images import it, and must not import torch.
"""
