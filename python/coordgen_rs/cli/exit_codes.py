"""The exit codes of `coordgen`."""

DONE, FAILED = 0, 2

INTERRUPTED = 130
"""128 + SIGINT: the exit code that shells give to a program that was interrupted."""

EXIT_CODES = """\
exit codes:
  0    done
  1    `check`: not exact here; `generate --compare`: other tokens; `--table`: a cell failed
  2    wrong use, wrong input, or a failure: one line on stderr says what
  130  interrupted (Ctrl-C)
"""
