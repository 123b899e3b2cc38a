"""The processes of one run under torchrun: what they share and how they divide their work."""
