from __future__ import annotations

from holdfast.observe.stacks import StackFrame, innermost, user_frames

DUMP = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/home/me/loader.py", line 9 in fill

Current thread 0x00007f2 (most recent call first):
  File "/home/me/venv/lib/python3.11/site-packages/torch/x.py", line 5 in recv
  File "/home/me/train.py", line 88 in fetch
  File "/home/me/train.py", line 12 in <module>
  File "<frozen runpy>", line 88 in _run_code
"""


def test_the_main_thread_stands_at_the_users_innermost_line() -> None:
    assert innermost(DUMP) == "/home/me/train.py:88 in fetch"


def test_without_a_line_of_the_users_it_is_the_innermost_of_all() -> None:
    assert innermost('Thread 0x1:\n  File "<frozen x>", line 3 in f\n') == "<frozen x>:3 in f"
    assert innermost("") == "an unknown place"


def test_frames_of_a_traceback_have_their_source() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 4, in main\n    go(x)\n    ^^^^^\n'
        '  File "/home/me/train.py", line 9, in go\nValueError: no\n'
    )
    assert user_frames(text) == [
        StackFrame("/home/me/train.py", 4, "main", "go(x)"), StackFrame("/home/me/train.py", 9, "go", ""),
    ]
