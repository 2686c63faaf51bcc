"""`make lab` starts for whoever calls it, says last where to go, and lets nobody else in."""

import os
import subprocess
import sys
import urllib.error
import urllib.request

import psutil
import pytest

from tests.support.course import ROOT


def status(address):
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.slow
def test_the_last_line_is_the_address_of_the_notebook_and_only_this_machine_with_its_token_gets_in(tmp_path):
    recipe = "\t$(BIN)/python -m tools.lab notebooks/00_start_here.ipynb $(ARGS)\n"
    assert recipe in (ROOT / "Makefile").read_text(encoding="utf-8")
    (tmp_path / "00_start_here.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    homes = dict.fromkeys(("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"), str(tmp_path))
    command = [sys.executable, "-m", "tools.lab", "--no-browser", "--port=0", tmp_path / "00_start_here.ipynb"]
    with subprocess.Popen(
        command, cwd=ROOT, env=os.environ | homes, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as lab:
        try:
            seen = []
            while not seen or not seen[-1].startswith("http"):
                line = lab.stdout.readline()
                assert line, "".join(seen)  # it ended: as root it would, without --allow-root
                seen.append(line)
            address, _, token = seen[-1].strip().partition("?token=")
            assert address.endswith("/lab/tree/00_start_here.ipynb")
            assert status(seen[-1].strip()) == 200
            assert len(token) >= 32
            contents = address.replace("/lab/tree/", "/api/contents/")
            gave = {given: status(contents + given) for given in ("", "?token=wrong", f"?token={token}")}
            assert list(gave.values()) == [403, 403, 200], gave
            ports = psutil.Process(lab.pid).net_connections()
            listens = {port.laddr.ip for port in ports if port.status == psutil.CONN_LISTEN}
            assert listens | {"127.0.0.1", "::1"} == {"127.0.0.1", "::1"}, listens
            assert listens
        finally:
            lab.terminate()
        assert not [line for line in lab.stdout if "http" in line]  # nothing to open comes after it
