"""Checkpoints as files: writing one so that no kill and no disk can leave half of it, and reading what is proven whole.

    ROOT/step-000000000120/manifest.json       what it is, with a SHA-256 of each file and tensor, and of itself
                           state.safetensors   the bytes
         .new-..., .old-...                    a save that goes on, or what a kill has left of one

`writer.write` makes one, `reader.newest` finds the newest that is whole. What is in it (`content`) is named sections of
bytes; what they mean is known by those who give and take them. Nothing here imports torch, but for two exports.
"""
