"""The run folder: file names, typed records, reading and writing. This package imports no torch."""
