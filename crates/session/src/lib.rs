//! What a gateway decides, without I/O.
