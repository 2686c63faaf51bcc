"""What `make constraints` writes can be installed on another system, with another Python and another build of torch."""

from types import SimpleNamespace

import pytest

from tools.constraints import constraints


@pytest.mark.parametrize(
    ("name", "version", "pythons", "lines"),
    [
        ("torch", "2.13.0+cpu", ">=3.10", ["torch==2.13.0"]),
        ("Jupyter_Client", "8.10.0", None, ["jupyter-client==8.10.0"]),
        ("soupsieve", "4.1.2", ">=3.11.5", []),  # Debian 12 has Python 3.11.2
        ("nvidia-cublas", "13.1", None, []),  # the CPU build has none, and each CUDA build another
        ("llama-notebooks", "0.2.0", None, []),
        ("pip", "26.0", None, []),
    ],
)
def test_a_line_can_be_met_everywhere(name, version, pythons, lines):
    package = SimpleNamespace(metadata={"Name": name, "Requires-Python": pythons}, version=version)
    assert constraints([package]) == lines
