from lifelabel.methods.fine_tuning import FineTuning


class OCDM(FineTuning):
    summary = "to be written"
