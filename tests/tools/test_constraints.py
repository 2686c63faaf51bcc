"""What `make constraints` writes can be installed on another system, with another Python and another build of torch."""

from types import SimpleNamespace

from tools.constraints import constraints

INSTALLED = (
    ("torch", "2.13.0+cpu", ">=3.10"),
    ("Jupyter_Client", "8.10.0", None),
    ("soupsieve", "4.1.2", ">=3.11.5"),  # Debian 12 has Python 3.11.2
    ("nvidia-cublas", "13.1", None),  # the CPU build has none, and each CUDA build another
    ("llama-notebooks", "0.2.0", None),
    ("pip", "26.0", None),
)


def test_each_line_can_be_met_everywhere():
    packages = [SimpleNamespace(metadata={"Name": n, "Requires-Python": p}, version=v) for n, v, p in INSTALLED]
    assert constraints(packages) == ["jupyter-client==8.10.0", "torch==2.13.0"]
