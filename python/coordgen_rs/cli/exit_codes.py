"""The exit codes of `coordgen`."""

DONE, DIFFERENT, FAILED = 0, 1, 2

NO_VERDICT, SERVER_FAILED = 3, 4
"""Those of `coordgen verify` alone."""

INTERRUPTED = 130
"""128 + SIGINT: the exit code that shells give to a program that was interrupted."""

EXIT_CODES = """\
exit codes:
  0    done
  1    `check`: not exact here; `generate --compare`: other tokens; `generate --json-schema`: the
       JSON was cut off; `--table`: a cell failed; `verify`: answers differ; `history remove`: a
       name matched no document
  2    wrong use, wrong input, or a failure: one line on stderr says what
  3    `verify`: no verdict, since the server differs from itself, or has no plain answers
  4    `verify`: the server failed, or cannot be reached
  130  interrupted (Ctrl-C); `serve`: told to end a second time
"""
