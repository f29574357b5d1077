"""The simulator, compiled."""

def version() -> str:
    """Version of the simulator."""

def run_json(plan: str, seeds: list[int], threads: int) -> str:
    """Runs a plan (TOML) with each seed, on `threads` threads (0: one for each core).

    Returns a JSON array of reports in the order of the seeds. Other Python threads go on meanwhile.

    Raises:
        ValueError: when the plan cannot be run; the message names the key.
    """
