"""Files made to do harm are refused or harmless: no code of theirs runs, no memory is filled, nothing is overwritten.

Pickles that a plain `torch.save` writes are in tests/test_checkpoint.py; those here take more malice.
"""

import csv
import io
import json
import os
import pickle
import re
import shlex
import shutil
import struct
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
from markdown_it import MarkdownIt
from nbformat.v4 import new_code_cell, new_notebook, new_output

from helpers import train
from helpers.checkpoint import LARGEST_JSON, load_checkpoint, save_checkpoint
from helpers.model import Llama
from tests.support.files import META, OURS, join_safetensors, meta_weights, split_safetensors
from tests.support.fuzz import LINUX, memory, restart_peak, time_limit
from tests.support.lab import chromium, jupyter_lab, record_of
from tests.support.models import TINY, make_model
from tests.tools.test_grade import NORM, solved, write
from tools.classroom import grade

ROOT = Path(__file__).parents[2]
NOT_OPENED = r"consolidated.00.pth is damaged or holds something other than tensors, and was not opened"


@pytest.fixture
def saved(tmp_path):
    """A folder written by save_checkpoint."""
    save_checkpoint(make_model(OURS), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def meta(tmp_path):
    """A folder as Meta writes it."""
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / "params.json").write_text(json.dumps(META))
    torch.save(meta_weights(OURS), tmp_path / "meta" / "consolidated.00.pth")
    return tmp_path / "meta"


# ------------------------------------------------------------------------------------- pickles that run code

PROGRAMS = {  # pickles written by hand, each through another door
    "exec": lambda file: b"\x80\x02cbuiltins\nexec\n" + text(f"open({file!r}, 'w').close()") + b"\x85R.",
    "eval": lambda file: b"\x80\x02cbuiltins\neval\n" + text(f"open({file!r}, 'w').close()") + b"\x85R.",
    "a shell": lambda file: b"\x80\x02cos\nsystem\n" + text(f"touch {shlex.quote(file)}") + b"\x85R.",
    "an old protocol": lambda file: b"(" + text(f"touch {shlex.quote(file)}") + b"ios\nsystem\n.",
    "a new protocol": lambda file: (
        b"\x80\x04" + text("builtins") + text("exec") + b"\x93" + text(f"open({file!r}, 'w').close()") + b"\x85R."
    ),
}


def text(words):
    return b"X" + struct.pack("<I", len(words.encode())) + words.encode()


def replace_part(path, name, content):
    """Write the zip again with other content in one part."""
    with zipfile.ZipFile(path) as old:
        parts = {part.filename: old.read(part) for part in old.infolist()}
    with zipfile.ZipFile(path, "w") as new:
        for part, kept in parts.items():
            new.writestr(part, content if part.endswith(f"/{name}") else kept)


@pytest.fixture(params=PROGRAMS)
def program(request, tmp_path):
    """A pickle that creates the file tmp_path/it-ran; it has been tried out."""
    content = PROGRAMS[request.param](str(tmp_path / "it-ran"))
    pickle.loads(content)
    (tmp_path / "it-ran").unlink()  # it would run
    yield content
    assert not (tmp_path / "it-ran").exists()


def test_code_in_a_pth_is_not_run(meta, program):
    replace_part(meta / "consolidated.00.pth", "data.pkl", program)
    with pytest.raises(ValueError, match=NOT_OPENED) as caught:
        load_checkpoint(meta)
    assert "weights_only" not in str(caught.value)  # torch's own text advises to switch the protection off


def test_code_in_the_file_of_a_run_is_not_run(tmp_path, program):
    keep = tmp_path / "kept"
    torch.save({"run": ""}, keep)
    replace_part(keep, "data.pkl", program)
    before = keep.read_bytes()
    with pytest.raises(ValueError, match=r"kept is damaged or no kept run .*: move it away"):
        train.train(Llama(TINY), lambda: torch.arange(64).repeat(3), steps=1, keep=keep)
    assert keep.read_bytes() == before


def test_pickles_beside_safetensors_are_not_opened(saved, program):
    for file in ("pytorch_model.bin", "consolidated.00.pth", "training_args.bin", "model.safetensors.pkl"):
        (saved / file).write_bytes(program)
    load_checkpoint(saved)


def test_a_pickle_under_the_name_of_safetensors_is_refused(saved, program):
    (saved / "model.safetensors").write_bytes(program)
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or cut short"):
        load_checkpoint(saved)


def test_python_files_in_a_folder_are_not_imported(saved, tmp_path):
    for file in ("modeling_llama.py", "tokenizer.py", "__init__.py", "sitecustomize.py"):
        (saved / file).write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w')")
    content = json.loads((saved / "config.json").read_text())
    content["auto_map"] = {"AutoModelForCausalLM": "modeling_llama.LlamaForCausalLM"}
    (saved / "config.json").write_text(json.dumps(content))
    load_checkpoint(saved)
    assert not (tmp_path / "it-ran").exists()


# ------------------------------------------------------------------------------------------ zips and tensors


@pytest.mark.skipif(not LINUX, reason="peak memory is read as Linux tells it")
@pytest.mark.parametrize("part", ["data.pkl", "data/0", "another"])
def test_a_zip_bomb_is_refused_before_it_unpacks(meta, part):
    path = meta / "consolidated.00.pth"
    with zipfile.ZipFile(path) as old:
        parts = {entry.filename: old.read(entry) for entry in old.infolist()}
    folder = next(iter(parts)).split("/")[0]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in parts.items():
            if name != f"{folder}/{part}":
                new.writestr(name, content)
        with new.open(f"{folder}/{part}", "w", force_zip64=True) as bomb:
            for _ in range(300):
                bomb.write(bytes(2**20))
    assert path.stat().st_size < 2**20
    restart_peak()
    before = memory("VmRSS")
    with pytest.raises(ValueError, match=NOT_OPENED + r" \(.* has [\d,]+ bytes, but unpacks to 314,\d{3},\d{3}\)"):
        load_checkpoint(meta)
    assert memory("VmHWM") - before < 30_000


def test_parts_that_share_their_bytes_are_refused(meta):
    """A zip whose list of parts names one long part many times, without any compression."""
    path = meta / "consolidated.00.pth"
    with zipfile.ZipFile(path) as old:
        longest = max(old.infolist(), key=lambda part: part.file_size)
    with zipfile.ZipFile(path, "a") as parts:
        parts.writestr("one more", b"")
        for number in range(50):
            again = zipfile.ZipInfo(f"archive/data/{1000 + number}")
            again.header_offset, again.file_size, again.compress_size = (
                longest.header_offset, longest.file_size, longest.compress_size,
            )  # fmt: skip
            again.CRC = longest.CRC
            parts.filelist.append(again)
    with pytest.raises(ValueError, match=NOT_OPENED + r".* but unpacks to"):
        load_checkpoint(meta)


def test_one_storage_shown_as_all_weights_is_refused(meta):
    weights, one = meta_weights(OURS), torch.ones(100_000)
    for name, weight in weights.items():
        weights[name] = one[: weight.numel()].view(weight.shape)
    torch.save(weights, meta / "consolidated.00.pth")
    load_checkpoint(meta)  # a few views of one storage are harmless
    weights |= {f"extra.{number}": one for number in range(30)}
    torch.save(weights, meta / "consolidated.00.pth")
    with pytest.raises(ValueError, match=NOT_OPENED + r" \(its tensors claim [\d,]+ bytes, but the file has [\d,]+\)"):
        load_checkpoint(meta)


# ----------------------------------------------------------------------------------- headers of safetensors


def spoil(header, kind):
    """Change the header of a safetensors file; returns the length that it claims, or None for the true one."""
    first, second = sorted(set(header) - {"__metadata__"}, key=lambda name: header[name]["data_offsets"])[:2]
    begin, end = header[first]["data_offsets"]
    changes = {
        "negative offsets": {"data_offsets": [-end, 0]},
        "offsets the wrong way round": {"data_offsets": [end, begin]},
        "offsets beyond the end": {"data_offsets": [begin, 2**62]},
        "offsets beyond 64 bits": {"data_offsets": [begin, 2**64]},
        "overlapping tensors": {"data_offsets": header[second]["data_offsets"]},
        "a shape that overflows": {"shape": [2**32, 2**32, 4]},
        "a shape beyond 64 bits": {"shape": [2**70]},
        "a negative shape": {"shape": [-1, -64]},
        "a shape that is too large": {"shape": [2**40, 2**10]},
    }
    header[first] |= changes.get(kind, {})
    if kind == "an empty tensor beyond 64 bits":
        last = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        header["more"] = {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [last, last]}
    return {"a length of 2**60": 2**60, "a length of 2**64 - 1": 2**64 - 1, "a length of 0": 0}.get(kind)


HEADERS = [
    "negative offsets", "offsets the wrong way round", "offsets beyond the end", "offsets beyond 64 bits",
    "overlapping tensors", "a shape that overflows", "a shape beyond 64 bits", "a negative shape",
    "a shape that is too large", "an empty tensor beyond 64 bits", "a length of 2**60", "a length of 2**64 - 1",
    "a length of 0",
]  # fmt: skip


@pytest.mark.skipif(not LINUX, reason="peak memory is read as Linux tells it")
@pytest.mark.parametrize("kind", HEADERS)
def test_an_absurd_header_is_refused(saved, kind):
    path = saved / "model.safetensors"
    header, rest = split_safetensors(path.read_bytes())
    length = spoil(header, kind)
    path.write_bytes(join_safetensors(header, rest, length))
    restart_peak()
    before = memory("VmRSS")
    with pytest.raises(ValueError, match=r"model.safetensors is damaged or cut short .*: fetch the file again"):
        load_checkpoint(saved)
    assert memory("VmHWM") - before < 30_000


def test_a_name_that_stands_twice_is_refused_or_one_of_the_two(saved):
    path = saved / "model.safetensors"
    right = load_checkpoint(saved).state_dict()
    header, rest = split_safetensors(path.read_bytes())
    entry = '"model.norm.weight": ' + json.dumps(header["model.norm.weight"])
    for again in (entry, entry.replace("F32", "I32"), '"model.norm.weight": 3'):
        words = json.dumps(header)[:-1] + ", " + again + "}"
        path.write_bytes(struct.pack("<Q", len(words)) + words.encode() + rest)
        try:
            model = load_checkpoint(saved)
        except ValueError as error:
            assert str(saved) in str(error)  # noqa: PT017
        else:
            assert all(torch.equal(right[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("name", ["n" * 300, "..", "a\0b", "\udc80", "sub/../../x", "con", "~", "$HOME", "*"])
def test_an_index_cannot_name_what_is_no_file_of_its_folder(saved, name):
    (saved / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": f"{name}.safetensors"}}))
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(str(saved))):
        load_checkpoint(saved)


# ----------------------------------------------------------------------------------------------------- JSON


@pytest.mark.skipif(not LINUX, reason="peak memory is read as Linux tells it")
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@pytest.mark.parametrize("content", [b"[],", b"0,", b"[", b" "])
def test_100_megabytes_of_json_are_refused_unread(saved, name, content):
    (saved / name).write_bytes(b'{"model_type": [' + content * (100_000_000 // len(content)))
    restart_peak()
    before = memory("VmRSS")
    with pytest.raises(ValueError, match=rf"{name} has more than {LARGEST_JSON:,} bytes"):
        load_checkpoint(saved)
    assert memory("VmHWM") - before < 30_000


@pytest.mark.parametrize("key", ["model_type", "hidden_act", "vocab_size", "head_dim"])
def test_json_of_any_depth_is_refused(saved, key):
    content = json.loads((saved / "config.json").read_text())
    for depth in (*range(800, 1000, 3), 3000, 100_000, 1_000_000):
        for left, right in (("[", "]"), ('{"a":', "}")):
            words = json.dumps(content | {key: "here"}).replace('"here"', left * depth + "1" + right * depth)
            (saved / "config.json").write_text(words)
            with pytest.raises(ValueError, match=r"config.json"):
                load_checkpoint(saved)


# ------------------------------------------------------------------------------------------------------ links


def test_links_are_followed_as_the_hubs_cache_needs(saved, tmp_path):
    """The Hub's cache keeps files elsewhere and links to them; what they lead to is only read, as JSON or weights."""
    expected = load_checkpoint(saved).state_dict()
    (tmp_path / "blobs").mkdir()
    for path in list(saved.iterdir()):
        path.rename(tmp_path / "blobs" / path.name)
        path.symlink_to(tmp_path / "blobs" / path.name)
    assert all(torch.equal(expected[name], weight) for name, weight in load_checkpoint(saved).state_dict().items())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes and devices")
@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "params.json", "consolidated.00.pth"])
@pytest.mark.parametrize("kind", ["secret", "nothing", "itself", "folder", "endless", "pipe"])
def test_a_link_to_something_else_is_refused_and_shows_nothing_of_it(saved, meta, tmp_path, file, kind):
    folder = saved if (saved / file).exists() else meta
    path, secret = folder / file, tmp_path / "secret"
    secret.write_text("password: swordfish")
    path.unlink()
    places = {"secret": secret, "nothing": tmp_path / "no", "itself": path, "folder": tmp_path, "endless": "/dev/zero"}
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(places[kind])
    with time_limit(), pytest.raises((ValueError, FileNotFoundError), match=re.escape(str(folder))) as caught:
        load_checkpoint(folder)
    assert "swordfish" not in str(caught.value)
    assert secret.read_text() == "password: swordfish"


def test_a_model_is_never_saved_through_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    for name, place in {"full": tmp_path / "elsewhere", "empty": tmp_path / "no"}.items():
        (tmp_path / name).symlink_to(place)
        with pytest.raises(FileExistsError, match=f"{name} exists and is kept"):
            save_checkpoint(make_model(), tmp_path / name)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "no").exists()


# -------------------------------------------------------------------------- notebooks with programs in outputs

RUN = "(window.itRan = window.itRan || []).push('{}')"
SCRIPT = f"<script>{RUN.format('script')}</script>"
IMAGE = f'<img src=x onerror="{RUN.format("image")}">'
STORED = [  # outputs that run in a browser, if anything lets them
    new_output("display_data", {"text/html": f"<p>shown</p>{SCRIPT}{IMAGE}<a href='javascript:alert(1)'>a</a>"}),
    new_output("display_data", {"application/javascript": RUN.format("javascript"), "text/plain": "shown"}),
    new_output("display_data", {"text/markdown": f"shown {SCRIPT} [a](javascript:alert(1))"}),
    new_output("stream", name="stdout", text=SCRIPT + IMAGE),
]
MARKUP = "</td><script>alert(1)</script><img src=x onerror=alert(1)> [a](javascript:alert`1`) ![b](x:y) <x@y.zz> &lt;"
RAISES = f"""
def my_rms_norm(x, weight, eps):
    raise ValueError({MARKUP!r})
"""
NAMED = f"""
FORMULA = type("=cmd|' /C calc'!A1;=1+1", (Exception,), {{}})


def my_rms_norm(x, weight, eps, kind=(_ for _ in ()).throw(FORMULA({MARKUP!r}))):
    return x
"""
ALLOWED = {"h1", "h2", "p", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}


class Tags(HTMLParser):
    """Every tag with the names of its attributes."""

    def __init__(self, page):
        super().__init__()
        self.found = set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found |= {(tag, "")} | {(tag, name) for name, _ in attributes}


def tags_of_page(page):
    """What a Markdown viewer that lets HTML through makes of a page; headings of a table are told apart by style."""
    return Tags(MarkdownIt("commonmark", {"html": True}).enable("table").render(page)).found - {("th", ""), ("td", "")}


def cells_of(table):
    """The cells that spreadsheets see: they cut at commas, semicolons (in half of Europe) or tabs."""
    return [cell for mark in ",;\t" for row in csv.reader(io.StringIO(table), delimiter=mark) for cell in row]


def starts_a_formula(cell):
    return cell.lstrip(' \t\r\n"').startswith(tuple("=+-@＝＋－＠"))


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """The table and the pages of a class whose names, files, outputs and errors are programs."""
    folder = tmp_path_factory.mktemp("hostile") / "handed in"
    names = ['=HYPERLINK("x")', "+1", "-2+3;=1+1", "@SUM(1)", "＝1", ' ;"=1+1', f"{SCRIPT}{IMAGE}".replace("/", "")]
    for name in [*names, "raises", "named\n=1+1\n# heading"]:
        answer = {"raises": RAISES, "named\n=1+1\n# heading": NAMED}.get(name)
        notebook = solved({"my_rms_norm": answer} if answer else {})
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"] = STORED
        write(folder / name / f"{NORM}.ipynb", notebook)
    write(folder / "+1" / f"{IMAGE} {SCRIPT}.txt".replace("/", ""), "")
    grade.main([str(folder), "--csv", str(folder.parent / "g.csv"), "--only", "01", "--no-isolation"])
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (folder.parent / "g_feedback").iterdir()}
    return (folder.parent / "g.csv").read_bytes().decode(), pages


def test_a_page_of_feedback_runs_nothing(graded):
    table, pages = graded
    assert len(pages) == 9
    assert "ValueError: </td><script>" in table  # the text came through
    assert "<script>" in "".join(pages.values()).replace("\\", "")
    for page in pages.values():
        found = tags_of_page(page)
        assert {tag for tag, _ in found} <= ALLOWED
        assert {name for _, name in found} == {""}
        assert page.count("\n# ") == 0, "a name made a heading of its own"


def test_no_cell_of_the_table_is_a_formula(graded):
    table, _ = graded
    rows = list(csv.reader(io.StringIO(table)))
    assert len(rows) == 1 + 9 * 4
    assert {len(row) for row in rows} == {8}
    assert [cell for cell in cells_of(table) if starts_a_formula(cell)] == []
    assert "'=cmd|' /C calc'!A1;'=1+1: </td>" in table


def test_the_two_notice_a_script_and_a_formula():
    assert ("script", "") in tags_of_page("a | <script>alert(1)</script>")
    assert ("a", "href") in tags_of_page("[a](https://x.org)")
    assert [starts_a_formula(cell) for cell in cells_of('a,"b;"" =1"\n')] == [False, False, False, True, False]


def programs_in(notebook):
    """What a reader's browser could run: outputs beside the known kinds, and HTML beside the course's own tags."""
    kinds = {"image/png", "text/plain", "text/html", "text/markdown", "application/vnd.jupyter.widget-view+json"}
    tags = {(tag, "") for tag in ("details", "summary", "div", "strong", "em", "br")}
    for number, cell in enumerate(notebook.cells, 1):
        pages = [cell.source] if cell.cell_type in ("markdown", "raw") else []
        for output in cell.get("outputs", []):
            yield from (f"cell {number}: {kind}" for kind in output.get("data", {}) if kind not in kinds)
            pages += [output.get("data", {}).get(kind, "") for kind in ("text/html", "text/markdown")]
        for page in pages:
            yield from (f"cell {number}: <{' '.join(tag)}>" for tag in Tags(page).found - tags)
            yield from (
                f"cell {number}: {link}" for link in re.findall(r"\b(?:javascript|data|vbscript):\S+", page, re.I)
            )


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_of_the_course_holds_no_program_for_the_browser(path):
    """The website is built from these files."""
    assert list(programs_in(nbformat.read(path, as_version=4))) == []


def test_programs_in_a_notebook_are_noticed():
    found = list(programs_in(new_notebook(cells=[new_code_cell("", outputs=STORED)])))
    for part in ("<script >", "<img onerror>", "<a href>", "javascript:alert(1)", "application/javascript"):
        assert any(part in one for one in found), part


@pytest.mark.browser
def test_a_stored_program_runs_only_in_a_notebook_that_was_trusted(tmp_path):
    """JupyterLab cleans stored outputs, unless this reader signed the notebook: the control, in which they run."""
    (tmp_path / "notebooks").mkdir()
    for name in ("stranger", "trusted"):  # they differ, for a signature is one of the content
        notebook = new_notebook(cells=[new_code_cell(f"'{name}'", outputs=STORED, execution_count=1)])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(notebook, tmp_path / "notebooks" / f"{name}.ipynb")
    ran = {}
    try:
        with chromium() as browser, jupyter_lab(tmp_path) as (address, token):
            environment = os.environ | {"JUPYTER_DATA_DIR": str(tmp_path / "jupyter_data_dir")}
            sign = [sys.executable, "-m", "nbformat.sign", str(tmp_path / "notebooks" / "trusted.ipynb")]
            subprocess.run(sign, env=environment, check=True, capture_output=True)
            for name in ("stranger", "trusted"):
                page = browser.new_page()
                page.set_default_timeout(120_000)
                page.goto(f"{address}/lab/workspaces/{name}/tree/{name}.ipynb?token={token}&reset")
                page.locator(".jp-OutputArea-output", has_text="shown").first.wait_for(timeout=120_000)
                page.wait_for_timeout(1000)
                if name == "trusted":
                    page.wait_for_function(
                        "['script', 'image', 'javascript'].every(one => window.itRan?.includes(one))"
                    )
                ran[name] = page.evaluate("window.itRan || []")
                page.close()
    except LookupError as missing:
        if os.environ.get("CI"):
            pytest.fail(f"CI must try this in a browser: {missing}")
        pytest.skip(f"{missing}; un-skip when it is there")
    assert ran["stranger"] == []
    assert {"script", "image", "javascript"} <= set(ran["trusted"])


# ------------------------------------------------------------------------------------------------ JupyterLab


def command_of_lab():
    """What `make lab` would run to open JupyterLab."""
    command = ["make", "-n", "lab", "ARGS=", f"VENV={Path(sys.executable).parent.parent}"]  # not those of `make test`
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return next(line for line in done.stdout.splitlines() if re.search(r"jupyter[ -]lab\b", line))


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_no_option_of_make_lab_opens_the_server():
    command, makefile = command_of_lab(), (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in (command, makefile):
        assert not re.search(
            r"(?i)token|password|--ip|0\.0\.0\.0|allow[-_]|disable_check|xsrf|no-?auth|--config", words
        )


@pytest.fixture
def lab(tmp_path):
    """JupyterLab as `make lab` starts it, on a free port; its own record of address and token."""
    homes = {name: str(tmp_path / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR")}
    command = [sys.executable, "-m", *shlex.split(command_of_lab().split("jupyter ", 1)[1])]
    command[2] = "jupyterlab"
    server = subprocess.Popen(
        [*command, "--no-browser", "--allow-root", "--port=0"], cwd=ROOT,
        env=os.environ | homes | {"HOME": str(tmp_path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield record_of(server, tmp_path / "JUPYTER_RUNTIME_DIR")
    finally:
        server.terminate()
        server.wait(120)


def status(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    try:
        return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_jupyterlab_asks_for_a_token_and_listens_on_loopback_only(lab):
    address = f"http://127.0.0.1:{lab['port']}/api/contents"
    assert lab["hostname"] in ("localhost", "127.0.0.1")
    assert len(lab["token"]) >= 32
    assert status(address) == 403
    assert status(address, Authorization="token wrong") == 403
    assert status(address, Authorization=f"token {lab['token']}") == 200
    ports = psutil.Process(lab["pid"]).net_connections()
    listens = {port.laddr for port in ports if port.status == psutil.CONN_LISTEN}
    assert {address.ip for address in listens} <= {"127.0.0.1", "::1"}
    assert lab["port"] in {address.port for address in listens}
