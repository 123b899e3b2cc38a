"""One run over a stream: training, label server, scoring, checkpoints and the run folder.

Nothing is imported here: the label server must not import methods.
"""
