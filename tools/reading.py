"""What a learner meets in a notebook: the minutes it takes, and answers that stand in open code before their fold.

    python -m tools.reading            # all notebooks; or some, by their names: 02_rope

`make notebooks` folds code that only draws. What stays open between a question (a cell tagged `predict`) and its answer
("What you saw") is read before the answer, so nothing in it may tell: that is what `answers_seen` looks for.
"""

import argparse
import ast
import io
import re
import tokenize

import nbformat

from tools.course import ROOT, notebooks_of
from tools.votes import votes_of

NUMBER = re.compile(r"(?<![\w.-])(?:([A-Za-z]+) )?(\d[\d,]*(?:\.\d+)?)(?![\w.]*\w)(?= ?([A-Za-z]*))")
SHORT = set(re.findall(r"\w+", """
    the and one for not all but any its has was are too two can may out now who see last four about with from that they
    this than then"""))  # fmt: skip
COMMON = SHORT | set(re.findall(r"\w+", """
    above after again against already always because before being below could does done each either else enough even
    every exactly first found given gives have here however into just keep keeps known large larger less like likely
    little long made make makes many mean means more most much nearly neither never next nothing number numbers often
    once only other others same second section should small smaller some still such take takes tell their them there
    these thing those though three title true false under until used uses usual value values very what when where which
    while whole will within without would your figure guess hardly left right point answer everything between since
    stays must"""))  # fmt: skip


# --------------------------------------------------------------------------------------------------- minutes


def minutes(notebook) -> float:
    """What reading, predicting and running take without the exercises: a rule fitted to nine walks (CONTRIBUTING.md).

    A minute for 120 words, one for 4 lines of code that do more than draw or import, and three for a figure.
    """
    words = lines = figures = 0
    aside = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = re.match(r"## (.*)", cell.source)
            aside = heading[1].startswith(("Exercises", "Solutions")) if heading else aside
        if aside:
            continue
        if cell.cell_type == "markdown":
            words += words_in(cell.source)
            continue
        figures += any("image/png" in output.get("data", {}) for output in cell.outputs)
        if "figure" not in cell.metadata.get("tags", []):
            lines += len(re.findall(r"^ *(?!import |from |\s)\S", cell.source, re.M))
    return words / 120 + lines / 4 + 3 * figures


def words_in(text: str) -> int:
    """Number of words of prose: a formula counts as one; code, tables, tags and targets of links do not count."""
    text = re.sub(r"^```.*?^```|^ *\|.*?$", "", text, flags=re.M | re.S)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "formula", text, flags=re.S)
    return len(re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)|</?\w[^>]*>", " ", text)))


def stated_minutes(notebook) -> int:
    """What its title cell says."""
    return int(re.search(r"\*\*Minutes:\*\* (\d+)", notebook.cells[0].source)[1])


# ------------------------------------------------------------------------------ answers that are seen too early


def answers_seen(notebook) -> list[tuple[str, str, set[str]]]:
    """(id of the question, id of the cell, words and numbers) for each open cell that tells an answer before its fold.

    Read are, of the answer, the first two sentences (of each item, if it has items); of open code, all texts with a
    space in them, comments, and names of functions and classes; of folded code its first line, which JupyterLab shows;
    of text between them its headings. Told is the answer by

    - a number that is not in the question, nor elsewhere in this section (of one digit: with the same word beside it);
    - a word that is not in the question, nor anywhere above; in titles, labels and descriptions of figures: nor in the
      question;
    - words or numbers of the right one of the offered answers, if no other one's stand there, too.

    Other words for the same finding are not noticed.
    """
    cells, found = notebook.cells, []
    for place, asks in enumerate(cells):
        if "predict" not in asks.metadata.get("tags", []):
            continue
        behind = range(place + 1, len(cells))
        last = next((i for i in behind if "<summary>What you saw" in cells[i].source), place)
        if last == place:
            continue
        sentences = _begin_of_answer(cells[last].source)
        above = "\n".join(cell.source for cell in cells[:place])
        section = re.split(r"^## ", above, flags=re.M)[-1]
        first, answer = " ".join(part[0] for part in sentences), " ".join(" ".join(part) for part in sentences)
        question = asks.source[max(asks.source.find("**Predict.**"), 0) :].replace("**Predict.**", "")
        numbers = _numbers(answer) - _numbers(asks.source)
        known = {word[:4] for word in _words(above, 4, ())}
        words = {word for word in _words(answer) if word[:4] not in {w[:4] for w in _words(asks.source, 4, ())}}
        new = {word for word in words & _words(first) if word[:4] not in known}
        for cell in cells[place + 1 : last]:
            titles, said = _open_texts(cell)
            told = set()
            for text in titles:
                told |= numbers & _numbers(text) | words & _words(text)
            for text in said:
                told |= (numbers - _numbers(section)) & _numbers(text) | new & _words(text)
            for *_, offered in votes_of("", question):
                told |= _offered_and_told(question, offered, first, answer, titles, said)
            if told:
                found.append((asks.id, cell.id, told))
    return found


def _begin_of_answer(text):
    # The first two sentences of each item, or of the first paragraph.
    text = re.split(r"<summary>What you saw.*?</summary>", text)[1].split("</details>")[0].replace("**Verdict**:", "")
    parts = [part.strip() for part in re.split(r"\n\s*\n|^(?=\d+\. )", text, flags=re.M) if part.strip()]
    parts = [part for part in parts if re.match(r"\d+\. ", part)] or parts[:1]
    return [re.split(r"(?<=[.!?;]) (?=[A-Z*`$(])", re.sub(r"^\d+\. ", "", part))[:2] for part in parts]


def _open_texts(cell):
    # Titles, labels and descriptions of figures; and all else that is read in an open cell.
    if cell.cell_type != "code":
        return re.findall(r"^#+ .*", cell.source, re.M), []
    if cell.metadata.get("jupyter", {}).get("source_hidden"):
        return [], re.findall(r"#.*|\"[^\"]* [^\"]*\"", cell.source.split("\n")[0])
    source = re.sub(r"^[%!].*", "", cell.source, flags=re.M)
    nodes = list(ast.walk(ast.parse(source)))
    formats = {id(part) for node in nodes if isinstance(node, ast.FormattedValue) for part in _parts(node.format_spec)}
    drawn = {id(part) for node in nodes if _draws(node) for part in _parts(node)}
    texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    texts = [text for text in texts if " " in text.value.strip() and id(text) not in formats]
    said = [text.value for text in texts if id(text) not in drawn]
    said += [node.name.replace("_", " ") for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    said += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [text.value for text in texts if id(text) in drawn], [" \n".join(said)]


def _parts(node):
    return ast.walk(node) if node else ()


def _draws(node):
    name = node.arg if isinstance(node, ast.keyword) else node.func if isinstance(node, ast.Call) else None
    name = node.targets[0] if isinstance(node, ast.Assign) else name
    name = ast.unparse(name) if isinstance(name, ast.AST) else name
    return bool(name and re.search(r"title|label|text|show|plot|\balt\b", name))


def _offered_and_told(question, offered, first, answer, titles, said):
    # Words and numbers of the right one of the offered answers, where a text has none of a wrong one.
    if len(offered) < 2 or offered[0] in ("yes", "true"):
        return set()
    rest = question
    for one in offered:
        rest = rest.replace(one, " ")
    every = [_marks(one) - _marks(rest) for one in offered]
    own = [marks.difference(*every[:i], *every[i + 1 :]) for i, marks in enumerate(every)]
    right = {i for i, marks in enumerate(own) if marks & _marks(first)}
    right = right or {i for i, marks in enumerate(own) if marks & _marks(answer)}
    told = set()
    for text in (*titles, *said):
        seen = {i for i, marks in enumerate(own) if marks & _marks(text)}
        if seen <= right and len(seen) < len(offered):
            told |= {mark for i in seen for mark in own[i] & _marks(text)}
    return told


def _marks(text):
    digits = set(re.findall(r"\d[\d,]*(?:\.\d+)?", text))
    least = 1 if not re.search(r"[A-Za-z]{3}", text) else 2  # beside words a digit says little
    return {number for number in digits if len(number) >= least} | _words(text, 3, SHORT)


def _numbers(text):
    found = set()
    for before, number, behind in NUMBER.findall(text.lower()):
        number = number.replace(",", "").rstrip(".")
        small = {f"{before} {number}" if before else "", f"{number} {behind}" if behind else ""} - {""}
        found |= {number} if len(number) > 1 else small
    return found


def _words(text, least=5, without=COMMON):
    # Their first five letters.
    text = re.sub(r"\$[^$]*\$|`[^`]*`", " ", text)
    return {word[:5] for word in re.findall(rf"[a-z]{{{least},}}", text.lower()) if word not in without}


def main(arguments: list[str] | None = None) -> None:
    """Print what a learner meets."""
    parser = argparse.ArgumentParser(prog="python -m tools.reading", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as 06_train (default: all)")
    parser.add_argument("--open", action="store_true", help="as if no code were folded")
    chosen = parser.parse_args(arguments)
    for path in notebooks_of(ROOT / "notebooks", chosen.names):
        notebook = nbformat.read(path, as_version=4)
        if chosen.open:
            for cell in notebook.cells:
                cell.metadata.pop("jupyter", None)
        print(f"{path.stem}: {minutes(notebook):.0f} minutes by the rule, {stated_minutes(notebook)} are stated")
        for question, cell, told in answers_seen(notebook):
            print(f"  below {question}, cell {cell} tells: {', '.join(sorted(told))}")


if __name__ == "__main__":
    main()
