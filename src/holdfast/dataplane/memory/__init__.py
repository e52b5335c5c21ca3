"""The shared memory of one host: what lies where, who writes it, and how it is read from outside.

One memfd, laid out by every worker from the same inputs (`arena`); sections begin at pages.

What sections there are, who writes them, what marks them as whole and how long they count is one table (`sections`).
Pages that nobody touches take no memory: on one host those of `host` and `pieces`, in a plain loop that does not clip
also those of `sum`.

Undo: updates are in place, so a kill in the middle leaves a torn slice. Before an owner touches a slice it copies it to
its undo section and sets one word on the board; after the update it publishes the version with one store and clears the
word. In the next generation the slice's new owner sees the word: if the version is still the old one, it puts the copy
back.
"""
