"""The shared memory of one host: what lies where, who writes it, and how it is read from outside.

One memfd, laid out by every worker from the same inputs (`arena`); sections begin at pages.

| section | content | written by |
|---|---|---|
| `board` | header; a row per worker; a record per lane and per slice (version, norm) | one writer a cell |
| `parameters/DTYPE` | the trainable parameters, flat; models look into it | the slice's owner |
| `state/KEY/DTYPE`, `scalar/KEY`, `ready` | optimizer state, laid out like the parameters | the slice's owner |
| `undo` | one slice per row: its content before its owner changed it | the row's worker |
| `slot/LANE/DTYPE`, `sum/DTYPE`, `present` | gradients and partial sums; which had a gradient | driver; owner |
| `push/LANE/DTYPE`, `pushes` | relaxed modes: gradients of pushes, clocks, commit sets | driver; first slice's owner |
| `read/LANE/DTYPE` | relaxed modes: parameters a push was computed from, where stale ones are compensated | driver |
| `buffers` | two copies that take turns, and a record per lane | driver; first slice's owner |
| `settings` | three cells per row: learning rates and scheduler state as plain numbers | the row's worker |
| `evaluation` | results of evaluation batches, by number | the worker that computed the batch |
| `fixed/N` | parameters that are not trained | the first worker, once |
| `host/DTYPE`, `pieces` | partial sums merged for other hosts; what has come of which slice | owner; receiver |
| `manifest` | where all of this lies, for the peer session, which does not know the model | every worker, the same |

Undo: updates are in place, so a kill in the middle leaves a torn slice. Before an owner touches a slice it copies it to
its undo section and sets one word on the board; after the update it publishes the version with one store and clears the
word. In the next generation the slice's new owner sees the word: if the version is still the old one, it puts the copy
back.
"""
