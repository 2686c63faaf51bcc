"""What a class can vote on at a Predict cell: each of its questions, and the answers that the question offers.

The rules take no answer that the text does not offer, so some questions get none, and the teacher writes them:

- `...: a, b or c?`, and `Is the width a, b or c?` offer a, b, c.
- `Does it ...?`, `Can ...?` without an *or* offer yes and no, unless commas make a list of cases of it.
- `And for ...?` offers what the question before it does.
- A claim (`Tutorials say: "..."`) above the question is voted on first.
"""

import re

TOGETHER = re.compile(r"\$.*?\$|`.*?`|\([^()]*\)")  # a comma or a full stop inside separates nothing
CLAIM = re.compile(r'\*\*(Tutorials say: ".*?")\*\*')
STEM = re.compile(
    r"(?:(?:is|are|does|do) (?:it|they|\w+ there)|(?:is|are) the (?:\w+ (?=model\b))?\w+|do you \w+|the \w+ becomes) ",
    re.I,
)
YES_NO = re.compile(r"(?:is|are|do|does|can|will|must) ", re.I)
AGAIN = re.compile(r"(?:And|For|On|In)\b(?!.*\b(?:which|how|what|is|will)\b)")


def votes_of(text: str, question: str) -> list[tuple[str, str, str, list[str]]]:
    """The votes of one Predict cell.

    Args:
        text: what stands before the question.
        question: the paragraph that asks, and its numbered questions; without **Predict.**

    Returns:
        For each vote what stands before the question, the question, what stands behind it, and the answers, perhaps
        none. All is Markdown.
    """
    claims = [("", claim, "", ["true", "false", "true with a condition"]) for claim in CLAIM.findall(text)]
    lead, *items = (" ".join(part.split()) for part in re.split(r"^\d+\. ", question, flags=re.M))
    if not items:
        lead, items = "", [lead]
    return claims + [vote for item in items for vote in _votes_of_item(lead, item)]


def _votes_of_item(lead, item):
    sentences, answers = _cut(item, r"(?<=[.?!)]) (?=[A-Z*`$(])"), []
    for place, sentence in enumerate(sentences):
        if sentence.endswith("?"):
            answers = answers_in(sentence) or (answers if AGAIN.match(sentence) else [])
            yield " ".join([lead, *sentences[:place]]), sentence, " ".join(sentences[place + 1 :]), answers
    if not any(sentence.endswith("?") for sentence in sentences):
        yield lead, item, "", []


def answers_in(sentence: str) -> list[str]:
    """The answers that one question offers, in Markdown; none where the rules above find none."""
    *stem, offered = _cut(sentence.removeprefix("And ").removesuffix("?"), ": ")
    *first, last = _cut(offered, ",? or (?!.* or )")
    if first and (stem or (", " in offered and STEM.match(offered))):
        return [*_cut(STEM.sub("", first[0], count=1), ", "), last]
    return ["yes", "no"] if not first and YES_NO.match(offered) and len(_cut(offered, ", ")) < 3 else []


def _cut(text, between):
    # The parts of the text between the places that match, except inside formulas, code and parentheses.
    shadow = TOGETHER.sub(lambda part: part[0][0] + "X" * (len(part[0]) - 2) + part[0][-1], text)
    places = [place.span() for place in re.finditer(between, shadow)]
    starts, ends = [0, *(end for _, end in places)], [*(start for start, _ in places), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]
