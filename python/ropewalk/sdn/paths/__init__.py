"""The neighbours of a bridge's ports."""
