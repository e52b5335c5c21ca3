"""Serving, side by side: a generator of load, servers that others wrote, ours, and what is measured of them.

The servers have the first core and the generator has the second one. Latency counts from the moment at which a request
should have been sent, so that a server that stands still is not asked less. Each answer is looked at.
"""
