"""`python -m coordgen_rs`: the command `coordgen`."""

import sys

if not sys.flags.safe_path:
    del sys.path[0]  # the working directory: a numpy.py beside a downloaded bundle would be run

from coordgen_rs.cli.entry import main

sys.exit(main())
