from lifelabel.methods.fine_tuning import FineTuning


class Frozen(FineTuning):
    summary = "to be written"
