from lifelabel.methods.fine_tuning import FineTuning


class ER(FineTuning):
    summary = "to be written"
