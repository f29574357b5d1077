"""A page in the browser about a running controller.

The pages are those of `ropewalk dashboard`: `pages` are links to its files, and a wheel has copies.
"""
