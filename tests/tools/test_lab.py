"""`make lab` starts for whoever calls it, says last where to go, and lets nobody else in."""

import os
import re
import urllib.error
import urllib.request

import psutil
import pytest

from tests.support.lab import jupyter_lab
from tools import lab


def got(address):
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""


@pytest.mark.slow
def test_the_last_line_is_the_address_of_the_notebook_and_only_this_machine_with_its_token_gets_in(tmp_path):
    (tmp_path / "00_start_here.ipynb").write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    with jupyter_lab(tmp_path, tmp_path / "00_start_here.ipynb") as (server, said, log):
        address, _, token = said.partition("?token=")
        assert address.endswith("/lab/tree/00_start_here.ipynb")
        assert re.search(r'"disabledExtensions": \[[^]]*:announcements"', got(said)[1])  # no question about news
        assert len(token) >= 32
        contents = address.replace("/lab/tree/", "/api/contents/")
        gave = {given: got(contents + given)[0] for given in ("", "?token=wrong", f"?token={token}")}
        assert list(gave.values()) == [403, 403, 200], gave
        ports = psutil.Process(server.pid).net_connections()
        listens = {port.laddr.ip for port in ports if port.status == psutil.CONN_LISTEN}
        assert set() < listens <= {"127.0.0.1", "::1"}
    assert "http" not in log.read_text().partition(said)[2]  # nothing to open comes after it


def test_help_says_what_jupyter_lab_takes(capsys):
    with pytest.raises(SystemExit):
        lab.start(["--help"])
    assert "--core-mode" in capsys.readouterr().out


def test_where_a_home_cannot_be_written_the_server_notes_what_runs_elsewhere(tmp_path, monkeypatch, capsys):
    (tmp_path / "full").touch()  # no folder can be made in it
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "full" / "runtime"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lab.use_a_folder_that_can_be_written()
    assert os.environ["JUPYTER_RUNTIME_DIR"].startswith(str(tmp_path / "jupyter-runtime-"))
    assert "runtime cannot be written (Not a directory): " in capsys.readouterr().out
    lab.use_a_folder_that_can_be_written()
    assert capsys.readouterr().out == ""
