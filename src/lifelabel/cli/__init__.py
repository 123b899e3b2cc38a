"""The command line. A command imports torch only when it runs: `--help` is fast."""
