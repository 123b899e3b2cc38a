from lifelabel.methods.fine_tuning import FineTuning


class AGEM(FineTuning):
    summary = "to be written"
