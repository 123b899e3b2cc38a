"""The configuration of a run: options, fidelities and presets.

Nothing is imported here: `lifelabel --help` imports `run_options`, and must not import torch.
"""
