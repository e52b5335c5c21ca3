"""Variables of a script around its loop: which a worker that comes late lacks."""
