"""Steps in relaxed modes: pushes, commit sets and the owners that apply them."""
