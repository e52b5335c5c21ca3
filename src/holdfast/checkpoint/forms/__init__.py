"""The model of a checkpoint in other forms: its weights by name, exports, what differs between two, folders of DCP."""
