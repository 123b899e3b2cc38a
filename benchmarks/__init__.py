"""Benchmarks: not tests. Each prints ratios against something measured in the same run."""
