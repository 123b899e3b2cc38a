from lifelabel.methods.fine_tuning import FineTuning


class L3A(FineTuning):
    summary = "to be written"
