"""Serving: a model behind an endpoint. `door` answers clients, `dispatch` decides, `replica` computes."""
