"""What the README shows is what happens."""

import re
import subprocess
import sys
from pathlib import Path

from tests.readmegen import README, drawn

TEXT = README.read_text("utf-8")


def test_the_picture_is_what_the_command_shows() -> None:
    assert drawn(TEXT) == TEXT


def test_the_first_program_runs_and_prints_what_the_text_says(tmp_path: Path) -> None:
    program = re.search(r"<!-- program:begin -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    printed = re.search(r"It prints `(.*?)`", TEXT)
    assert program
    assert printed
    result = subprocess.run(
        [sys.executable, "-c", program[1]], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == printed[1]
    assert (tmp_path / "release.thread").stat().st_size > 0


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert targets
    assert [target for target in targets if not (README.parent / target).exists()] == []


def test_the_two_commands_install_into_the_projects_own_folder() -> None:
    commands = re.findall(r"^python3 -m venv .*$", TEXT, re.MULTILINE)
    assert len(commands) == 2
    assert all(".venv/bin/pip install" in command for command in commands)
