"""What a load (load.py) met while something was done to the servers: for the results, and as what must hold."""


def figures(load):
    manners = [manner for manner, *_ in load.outcomes]
    return {"requests": len(manners), "turns": manners.count("Turns"), "streams": manners.count("Stream"), "lost": len(load.lost), "slowest_s": round(load.slowest_s, 1)}


def assert_nothing_lost(load, at_least, said=""):
    """at_least: so many requests of any kind, or it was no load."""
    assert len(load.outcomes) >= at_least, f"{len(load.outcomes)} requests"
    assert not load.lost, f"{len(load.lost)} of {len(load.outcomes)} requests lost: {load.lost[:3]}\n{said}"
