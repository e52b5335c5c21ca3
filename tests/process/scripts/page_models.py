"""Models for the tests of the page: one of pictures in colour, one of texts, one of numbers with names."""

from __future__ import annotations


class Colour:
    """Of which colour a picture has most."""

    inputs = ({"name": "image", "datatype": "UINT8", "shape": [-1, 32, 32, 3]},)
    outputs = ({"name": "scores", "datatype": "FP32", "shape": [-1, 3]},)
    classes = ("red", "green", "blue")

    def predict(self, image):
        sums = 1.0 + image.reshape(len(image), -1, 3).sum(axis=1)
        return {"scores": (sums / sums.sum(axis=1, keepdims=True)).astype("float32")}


class Words:
    """How many words a text has. It has never learned what to do with "boom"."""

    inputs = ({"name": "text", "datatype": "BYTES", "shape": [-1]},)
    outputs = (
        {"name": "words", "datatype": "INT64", "shape": [-1]}, {"name": "loud", "datatype": "BYTES", "shape": [-1]},
    )  # fmt: skip

    def predict(self, text):
        if any(b"boom" in one for one in text):
            raise ValueError("no boom")
        return {"words": [len(one.split()) for one in text], "loud": [one.decode().upper() for one in text]}


class Sums:
    """Numbers of two inputs, added up."""

    inputs = (
        {"name": "measures", "datatype": "FP32", "shape": [-1, 4]}, {"name": "age", "datatype": "INT32", "shape": [-1]},
    )  # fmt: skip
    outputs = ({"name": "sum", "datatype": "FP32", "shape": [-1]},)

    def predict(self, measures, age):
        return {"sum": measures.sum(axis=1) + age}
