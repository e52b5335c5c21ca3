"""Serving: a model behind endpoints.

`door` is the process, `endpoints` face clients, `models` keep requests until they are answered, `dispatch` decides, and
`replica` computes.
"""
