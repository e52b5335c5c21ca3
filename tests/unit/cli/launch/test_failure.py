from __future__ import annotations

from holdfast.cli.launch.failure import present

TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 1, in run_path
    code()
  File "/home/me/train.py", line 41, in <module>
    main()
  File "/home/me/train.py", line 30, in main
    loss = model(x)
  File "/home/me/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1739, in _call_impl
    return self._call_impl(*args, **kwargs)
ValueError: bad sample
"""


def test_culprit_first_and_the_users_lines_only() -> None:
    assert present("ScriptFailed", "worker 1 failed with ValueError; workers 0, 2-7 the same.", TRACE, "runs/x") == (
        "holdfast: worker 1 failed with ValueError; workers 0, 2-7 the same.\n"
        "  /home/me/train.py:41 in <module>: main()\n"
        "  /home/me/train.py:30 in main: loss = model(x)\n"
        "full trace: runs/x/failure.txt   output: runs/x/logs/"
    )


def test_never_15_lines() -> None:
    message = "\n".join(f"worker {n} failed differently" for n in range(50))
    told = present("ScriptFailed", message, TRACE * 5, "runs/x").splitlines()
    assert len(told) == 14
    assert told[0] == "holdfast: worker 0 failed differently"
    assert "... and 42 more lines" in told


def test_a_hang_names_its_stacks() -> None:
    assert "stacks: runs/x/hang-*.txt" in present("Hang", "worker 0 made no progress", "", "runs/x")


def test_without_a_trace_there_is_no_path_to_one() -> None:
    assert present("ConfigError", "lanes = 0", "", "runs/x") == "holdfast: lanes = 0"
