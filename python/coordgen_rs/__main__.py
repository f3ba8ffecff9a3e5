"""`python -m coordgen_rs`: the command `coordgen`."""

import sys

from coordgen_rs.cli.entry import main

sys.exit(main())
