from lifelabel.methods.fine_tuning import FineTuning


class PRS(FineTuning):
    summary = "to be written"
