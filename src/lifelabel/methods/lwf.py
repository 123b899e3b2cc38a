from lifelabel.methods.fine_tuning import FineTuning


class LwF(FineTuning):
    summary = "to be written"
