"""`python -m ropewalk.sdn` is `ropewalk-sdn`."""

import sys

from ropewalk.sdn.cli import main

sys.exit(main())
