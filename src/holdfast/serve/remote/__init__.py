"""Replicas on other machines.

    front door ── links ── gateway ═══ TCP ═══ replica host ── links ── replicas
                 (shared memory)                           (shared memory)

To the front door a replica elsewhere is a link and shared memory, as one on its own machine is: the *gateway*, a
process beside it, carries what goes through them over a connection for each replica, and a *replica host* on the other
machine (`holdfast replica`) does the reverse. So the front door does not pay for the network, and whatever is lost in
between is a link that has ended: its requests go to others.

The other machine dials: for itself once, and for each replica that it is asked for. It has the version's files sent
that it does not have, and believes them by their hashes.
"""
