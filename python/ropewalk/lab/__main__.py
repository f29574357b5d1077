"""`python -m ropewalk.lab` is `ropewalk-lab`."""

import sys

from ropewalk.lab.cli import main

sys.exit(main())
