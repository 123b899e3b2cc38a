"""Tables and figures of runs, made from their folders, and of streams."""
