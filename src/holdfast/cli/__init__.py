"""The `holdfast` command: one file a command, imported only when it is used. None of them imports torch."""
