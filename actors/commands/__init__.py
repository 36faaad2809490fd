"""The verbs of the command line, one module each. They import what they need when they run, so that `--help` is quick."""
