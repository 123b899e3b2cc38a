from lifelabel.methods.fine_tuning import FineTuning


class DERpp(FineTuning):
    summary = "to be written"
