"""What a learner meets in a notebook: its minutes, how it is told, and answers that stand open before their fold."""

import re

NUMBER = re.compile(r"(?<![\w.,-])(?:\d[\d,]*\.\d+|\d[\d,]*\d)(?!\w|\.\d)")  # of one digit it says little
READ = re.compile(r"#.*|\"[^\"\n]* [^\"\n]*\"|'[^'\n]* [^'\n]*'")  # comments, and texts with a space in them
PAUSE = "**Pause.**"  # how the cell begins behind which the second lesson starts


def lesson_cells(notebook) -> list:
    """The cells outside "## Exercises" and "## Solutions", and outside exercises that stand where they are taught."""
    kept, left = [], [False, False]
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (heading := re.match(r"##(#*) (.*)", cell.source)):
            left = [left[0] if heading[1] else heading[2] in ("Exercises", "Solutions"), "Exercise " in heading[2]]
        kept += [] if any(left) else [cell]
    return kept


def minutes(notebook) -> list[float]:
    """What each lesson takes without the exercises, by a rule fitted to walks (CONTRIBUTING.md).

    Three quarters of a minute for 100 words, 0.6 for a line of code that does more than draw or import, 3 for a figure.
    """
    lessons = [0.0]
    for cell in lesson_cells(notebook):
        if cell.cell_type == "markdown":
            lessons[-1] += 0.75 * words_in(cell.source) / 100
            lessons += [0.0] * cell.source.startswith(PAUSE)
        lessons[-1] += 3 * any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
        if cell.cell_type == "code" and "figure" not in cell.metadata.get("tags", []):
            lessons[-1] += 0.6 * len(re.findall(r"^ *(?!import |from |\s)\S", cell.source, re.M))
    return lessons


def words_in(text: str) -> int:
    """Number of words of prose: a formula counts as one; code, tables, tags and targets of links do not count."""
    text = re.sub(r"^```.*?^```|^ *\|.*?$", "", text, flags=re.M | re.S)
    text = re.sub(r"\$\$.*?\$\$|\$[^$\n]+\$", "formula", text, flags=re.S)
    return len(re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)|</?\w[^>]*>", " ", text)))


LINK = r"\b(because|since|so|but|therefore|thus|however|although|though|hence|for example|for instance)\b"


def telling(notebook) -> tuple[float, float]:
    """(colons inside sentences, words that link two thoughts) per 1,000 words of running text.

    Running text is paragraphs, lists and folds. Headings, tables, formulas, code, labels, the questions from earlier
    notebooks and the outlook do not count. A good teacher needs few of the first and many of the second.
    """
    running = []
    for cell in lesson_cells(notebook):
        if cell.cell_type == "markdown" and not re.search(r"^#+ *(From earlier|What comes next)", cell.source, re.M):
            text = re.sub(r"```.*?```|\$\$.*?\$\$|</?details>|<summary>.*?</summary>", " ", cell.source, flags=re.S)
            text = re.sub(r"^(#|\||\*\*(Minutes|Before|Papers)).*$|\*\*Predict\.\*\*", "", text, flags=re.M)
            running.append(re.sub(r"\$[^$]*\$|`[^`]*`", "X", re.sub(r"\]\([^)]*\)", "]", text)).replace("*", ""))
    text = "\n".join(running)
    thousands = len(text.split()) / 1000
    return tuple(len(re.findall(one, text, re.I)) / thousands for one in (r'[\w)"”]: +\S', LINK))


def answers_seen(notebook) -> list[tuple[str, str, set[str]]]:
    """(question's id, cell's id, numbers) for each open cell that tells a number of the answer before its fold.

    `make notebooks` folds code that only draws; what stays open between a question (a cell tagged `predict`) and its
    answer ("What you saw") is read before the answer. Read are, of the answer, its first two sentences; of open code,
    comments and texts; of folded code its first line. Told is a number that is neither in the question nor above it in
    this section. That a word tells the answer is for people to see.
    """
    cells, found = notebook.cells, []
    for place, asks in enumerate(cells):
        behind = cells[place + 1 :] if "predict" in asks.metadata.get("tags", []) else []
        last = next((n for n, cell in enumerate(behind) if "<summary>What you saw" in cell.source), 0)
        if not last:
            continue
        answer = re.split(r"</summary>\s*", behind[last].source.partition("<summary>What you saw")[2])[1]
        answer = " ".join(re.split(r"(?<=[.!?;]) ", answer.split("\n\n")[0])[:2])
        above = "\n".join(cell.source for cell in cells[: place + 1])
        new = set(NUMBER.findall(answer)) - set(NUMBER.findall(re.split(r"^## ", above, flags=re.M)[-1]))
        for cell in (one for one in behind[:last] if one.cell_type == "code"):
            folded = cell.metadata.get("jupyter", {}).get("source_hidden")
            text = cell.source.split("\n")[0] if folded else cell.source
            told = new & set(NUMBER.findall(" ".join(READ.findall(text))))
            found += [(asks.id, cell.id, told)] if told else []
    return found
