"""Where samples come from, and which of them a unit gets.

`sources` finds a `dataset` by its name, `digits` and `fashion_mnist` know where their files lie, `text` cuts
a text into windows: these import no torch before the first sample is taken. The other modules turn a user's
`DataLoader` into the batches of units.
"""
