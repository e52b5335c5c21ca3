"""`holdfast doctor --listen` and `--between`: how fast the network between two machines is, and over which addresses.

A listener runs on each machine and answers whoever holds the same token. The command that measures may run anywhere:
it asks each listener for its addresses, and has each measure its ways to the other.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path

from holdfast.config.limits import NETWORK
from holdfast.core.routes import Address, Offer, Trial, bits, choose, merged
from holdfast.errors import Unreachable, UsageError
from holdfast.transport import endpoint, network
from holdfast.transport.auth import token
from holdfast.transport.auth.credentials import Credentials
from holdfast.transport.auth.dial import connect
from holdfast.transport.auth.handshake import Hello
from holdfast.transport.auth.listener import Listener
from holdfast.transport.stream import Stream, name_of

__all__ = ["between", "listen", "table"]

_TOKEN = "HOLDFAST_TOKEN"


def listen(where: str, token_file: str | None) -> int:
    """Answer those who measure, until Ctrl-C. A token file that does not exist is made."""
    host, port = endpoint.parse(where, port=0)
    host = endpoint.listening_on(host)
    if token_file and not Path(token_file).exists():
        token.write(Path(token_file), token.make())
        print(f"made {token_file}: copy it to the other machines, readable by you alone")
    credentials = _credentials(token_file)
    responder: network.Responder
    ready = threading.Event()

    def serve(stream: Stream) -> None:
        ready.wait()
        responder.answer(stream)

    def came(_: Hello, stream: Stream) -> None:
        threading.Thread(target=serve, args=(stream,), name="holdfast-probe", daemon=True).start()

    door = Listener((host, port), credentials, admit=_admit, came=came, complain=_complain)
    with closing(door), suppress(KeyboardInterrupt):
        bound, number = door.address
        addresses = tuple(network.candidates(bound))
        offer = Offer(network.identity(), socket.gethostname(), number, addresses)
        responder = network.Responder(offer, dial=_dial(credentials))
        ready.set()
        print(f"listening on {name_of(door.address)} as {offer.name}: {', '.join(map(_claim, addresses))}")
        here = name_of((addresses[0].ip, number))
        print(f"measure: holdfast doctor --between {here} OTHER:PORT --token-file {token_file or 'FILE'}")
        print("OTHER listens, too; leave it out to measure from where you are. Ctrl-C ends this.", flush=True)
        threading.Event().wait()
    return 0


def between(places: Sequence[str], token_file: str | None, *, as_json: bool = False) -> int:
    """Measure between two listeners, or between here and one; 1 when they cannot reach each other."""
    if not 1 <= len(places) <= 2:
        raise UsageError(f"--between takes one or two addresses, not {len(places)}: holdfast doctor --between A B.")
    where = [endpoint.parse(text) for text in places]
    credentials = _credentials(token_file)
    calls = [connect(it, Hello("probe"), credentials, NETWORK.address) for it in where]
    try:
        offers = [network.describe(call) for call in calls]
        if len(offers) == 2 and offers[0].identity == offers[1].identity:
            raise UsageError(f"{places[0]} and {places[1]} are the same listener. Start another on the other machine.")
        if len(offers) == 2:
            trials = merged(network.survey_from(calls[0], offers[1]), network.survey_from(calls[1], offers[0]))
            names = [offer.name for offer in offers]
            if names[0] == names[1]:  # containers often have one name
                names = ["A", "B"]
        else:
            trials = network.survey(offers[0], _dial(credentials))
            names = ["here", offers[0].name]
    except (OSError, EOFError) as error:
        raise Unreachable(f"A listener stopped answering while it was asked ({error}). Start it again.") from None
    finally:
        for call in calls:
            call.close()
    return _report(names, trials, as_json=as_json)


def table(names: Sequence[str], trials: Sequence[Trial], used: Trial | None) -> str:
    """The ways as lines: where from, where to, and what each is worth."""
    one, other = names
    rows = [(one, other, "round trip", f"{one} to {other}", f"{other} to {one}", "")]
    for trial in trials:
        ends = (_claim(trial.here), _claim(trial.there))
        if trial.problem:
            rows.append((*ends, f"no: {trial.problem}", "", "", ""))
        else:
            trip = f"{trial.latency * 1000:.2g} ms"
            rows.append((*ends, trip, bits(trial.sent), bits(trial.received), "<- used" if trial is used else ""))
    # A problem may be long; nothing stands behind it.
    widths = [max(len(row[at]) for row in rows if row[3] or at < 2) for at in range(6)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def _report(names: Sequence[str], trials: Sequence[Trial], *, as_json: bool) -> int:
    used: Trial | None = None
    try:
        choice = choose(trials, names[0], names[1])
        used, sentence = choice.trial, choice.sentence
    except Unreachable as error:
        sentence = str(error)
    if as_json:
        ways = [{**asdict(trial), "used": trial is used} for trial in trials]
        for way in ways:
            way["latency"] = None if way["problem"] else way["latency"]  # JSON has no infinity
        print(json.dumps({"between": list(names), "ways": ways, "sentence": sentence}, indent=2))
    else:
        print(f"{table(names, trials, used)}\n\n{sentence}")
    return 0 if used else Unreachable.exit_code


def _credentials(token_file: str | None) -> Credentials:
    if token_file:
        return Credentials.read(Path(token_file))
    if given := os.environ.get(_TOKEN):
        return Credentials(token.check(given, _TOKEN))
    raise UsageError(
        f"Which token? Give --token-file FILE (or set {_TOKEN}). `holdfast doctor --listen ADDRESS --token-file FILE` "
        "makes one where there is none."
    )


def _dial(credentials: Credentials) -> network.Dial:
    return lambda ip, port: connect((ip, port), Hello("probe"), credentials, NETWORK.address)


def _admit(hello: Hello) -> str | None:
    return None if hello.kind == "probe" else "it is no run, but `holdfast doctor --listen`, which only measures."


def _complain(sentence: str) -> None:
    print(f"holdfast: {sentence}", file=sys.stderr, flush=True)


def _claim(address: Address | None) -> str:
    """An address, its interface, and what its driver claims."""
    if address is None or not address.ip:
        return "?"
    speed = f", claims {bits(address.speed * 1e6)}" if address.speed else ""
    return f"{address.ip} ({address.interface or '?'}{speed})"
