"""Pages in a real browser: what they consist of, who serves them, and how long they take.

`pages` draws them, `site` writes them as files, `server` serves them from many addresses,
`chromium` loads them, `video` plays a film beside them. `runner/browser.py` puts it together.
"""
