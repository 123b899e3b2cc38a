"""Benchmarks, which are not tests. Each prints ratios to something measured in the same run."""
