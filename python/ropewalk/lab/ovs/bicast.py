"""Names of the values that runs of copies over two links report."""

PACKETS = "packets on the links for each that the ends sent"
BYTES = "bytes on the links for each that the ends sent"
PROCESSOR = "processor time of both switches, of a core"
UNSENT = "unsent in the socket of OpenVPN at the server, mean, kB"
UNSENT_MOST = "unsent in the socket of OpenVPN at the server, most, kB"
SMALL_BYTES = 200
"""The largest IP packet that `bi-bicast-small` copies.

Acknowledgements have 52 bytes, more with SACK; a ping in OpenVPN has about 160. Larger values copy
more of the download, smaller ones leave out pings.
"""
