"""Helpers that do not depend on streams, networks or runs."""
