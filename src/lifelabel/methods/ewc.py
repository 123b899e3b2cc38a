from lifelabel.methods.fine_tuning import FineTuning


class EWC(FineTuning):
    summary = "to be written"
