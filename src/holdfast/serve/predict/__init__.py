"""Batch prediction: a data set over a crew of replicas, each row exactly once, resumable, in order.

    source ──► blocks ──► columns ──► replicas (door.model_service) ──► rows ──► record ──► the file

The data set is cut into numbered blocks of rows (`blocks`), and what a block gives is a pure function of model, data
and settings. So it does not matter which replica computes it, or how often; and what is written, in the order of the
blocks, is the same after any number of losses and new starts. Replicas, retries and replacements are those of
`holdfast serve`.
"""
