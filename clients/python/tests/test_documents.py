"""The code of the documents runs, and a wheel has the scripts that the code calls."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import Server, eventually

PACKAGE = Path(__file__).parent.parent
SOURCES = PACKAGE / "src" / "duestream"


def code_of(page: Path, server: Server) -> list[str]:
    blocks = re.findall("^```python\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    return [block.replace("redis://127.0.0.1:6379", server.url) for block in blocks]


def test_the_readme_begins_with_a_program_that_runs(server: Server, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(code_of(PACKAGE / "README.md", server)[0], "utf-8")
    output = tmp_path / "output"
    with output.open("wb") as out:
        running = subprocess.Popen([sys.executable, "-u", str(program)], stdout=out,
                                   env={**os.environ, "PYTHONPATH": str(PACKAGE / "src")})
    try:
        def arrived() -> bool:
            server.drain("orders")
            assert running.poll() is None, "the program ended"
            return "close order 42 was due" in output.read_text("utf-8")

        eventually(arrived)
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()


def test_the_code_of_the_guide_runs(server: Server, monkeypatch: Any) -> None:
    namespace: dict[str, Any] = {"__name__": "guide"}
    monkeypatch.setitem(sys.modules, "guide", type(sys)("guide"))  # dataclasses look for the module of a class
    for block in code_of(PACKAGE.parent.parent / "docs" / "guides" / "python.md", server):
        exec(block, namespace)
    assert len(namespace["results"]) == 1000 and not namespace["refused"]
    namespace["client"].close()


def test_a_wheel_has_the_scripts_that_are_called() -> None:
    text = "".join(file.read_text("utf-8") for file in SOURCES.glob("*.py"))
    called = set(re.findall(r'evaluate(?:_each)?\("(\w+)"', text))
    packed = set(re.findall(r'"lua/(\w+)\.lua"', (PACKAGE / "pyproject.toml").read_text("utf-8")))
    assert called == packed and all((SOURCES / "lua" / f"{name}.lua").is_file() for name in called)
