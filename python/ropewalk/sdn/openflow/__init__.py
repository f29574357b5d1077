"""OpenFlow 1.3: flow programs as data, their encoding, and the connection to the switch."""
