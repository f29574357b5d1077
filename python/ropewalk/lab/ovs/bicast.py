"""Names of the values that runs of copies over two links report."""

PACKETS = "packets on the links for each that the ends sent"
PROCESSOR = "processor time of both switches, of a core"
