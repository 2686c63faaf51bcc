"""What stays in the head: questions from earlier notebooks, asked again after days, sooner if wrong and sure.

    from_earlier("04", "sure B", "guess A", "fairly C")      # the cell at the top of notebook 04
    python -m checks.recall                                  # make recall: ten minutes of what is due
    from checks.recall import main; main([])                 # the same in a notebook's cell

Answers are kept in one file on this machine, runs/recall.json: read it, change it, delete it.
"""

import argparse
import datetime
import json
import os
import re
from pathlib import Path
from typing import NamedTuple

SURE = ("sure", "fairly", "guess")
COURSE = Path(__file__).resolve().parent.parent
KEPT = (COURSE if (COURSE / "notebooks").is_dir() else Path.cwd()) / "runs" / "recall.json"
MOST = 12  # questions in ten minutes


class Card(NamedTuple):
    """One question, with three answers to choose from."""

    question: str
    choices: tuple[str, str, str]
    right: str
    why: str


CARDS = {  # by the notebook that teaches it
    "00 leak": Card(
        "You change the last token of a text. Which logits of a causal model may change?",
        ("those of the last position", "all", "those of the earlier positions"), "A",
        "A position sees itself and what stands before it. If an earlier logit moves, something leaks."),
    "01 scale": Card(
        "A vector is multiplied by 100. With a tiny eps, what does RMSNorm return?",
        ("100 times as much", "the same as before", "10 times as much"), "B",
        "Dividing by the rms takes the length away, and keeps the direction."),
    "01 centre": Card(
        "A token has mean 3 and standard deviation 3. By how many degrees do LayerNorm and RMSNorm (gain 1) turn it?",
        ("0 and 45", "0 and 0", "45 and 0"), "C",
        "LayerNorm takes the mean away: the angle's tangent is mean / std, here 1. RMSNorm divides by a number."),
    "01 blind": Card(
        "A norm passes a test on `torch.randn(8, 64)`. Which fault may it still have?",
        ("the root is missing", "eps stands outside the root", "it takes the sum in place of the mean"), "B",
        "Beside a mean square of about 1 a small eps changes next to nothing, wherever it stands. Test tiny ones."),
    "02 zero": Card(
        "What does RoPE do to a query at position 0?",
        ("it turns each pair by its speed", "it sets it to 0", "nothing"), "C",
        "Every angle is position times speed, and the position is 0."),
    "02 shift": Card(
        "A query stands at position 7, a key at 4. Both move on by 100 positions. What does their score do?",
        ("it falls", "it stays", "it changes its sign"), "B",
        "The score sees the angle between the two: the distance times the speed."),
    "02 layout": Card(
        "A converted model is right for one token and wrong for two. What do you suspect?",
        ("a gain", "eps", "the layout of RoPE's pairs"), "C",
        "At distance 0 both layouts give the same score."),
    "02 slow": Card(
        "Trained on 1,024 tokens. Hand 4 turns once in 167 tokens, hand 7 once in 1,957. Which do you slow for 4,096?",
        ("hand 4", "hand 7", "both"), "B",
        "Hand 7 has not finished a turn, so it would meet new angles. Whether it is used, only stopping tells."),
    "03 token": Card(
        "Five tokens go through a SwiGLU. The second is changed. How many outputs change?",
        ("one", "four: it and those behind it", "five"), "A",
        "A feed-forward takes each token alone: its map of who sees whom is a diagonal."),
    "03 gate": Card(
        "A unit's gate g is 0. How far is it open, and what is SiLU(g)?",
        ("half, and 0.5", "shut, and 0", "half, and 0"), "C",
        "The opening, sigmoid(0), is one half; 0 times one half is 0."),
    "03 turn": Card(
        "To a vector of length 4 one of length 4 is added, at a right angle. How far does it turn?",
        ("45 degrees", "90 degrees", "not at all"), "A",
        "The sum is the diagonal of a square."),
    "04 groups": Card(
        "64 query heads, 8 key/value heads. Which query heads read key/value head 2?",
        ("2, 10, 18, ...", "16 to 23", "8 to 15"), "B",
        "Eight neighbours share one: i // 8 is 2."),
    "04 fill": Card(
        "`scores.masked_fill(~visible, 0)`, then the softmax. What happens to the hidden keys?",
        ("they keep some weight", "they have weight 0", "an error"), "A",
        "e to the power 0 is 1. Only minus infinity gives 0."),
    "04 halve": Card(
        "You halve `n_kv_heads`. What halves?",
        ("the FLOPs of q @ k.T", "q_proj", "the cache"), "C",
        "The cache holds keys and values. Each query head still meets every key."),
    "04 row": Card(
        "What does `causal_visible(1, 9)` return?",
        ("one True, eight False", "nine True", "a triangle of nine rows"), "B",
        "The one query is the last of nine positions."),
    "05 zero": Card(
        "`o_proj` and `down_proj` of a block are zero. What does the block return?",
        ("zeros", "the norm of its input", "its input"), "C",
        "Both branches add zero to the stream."),
    "05 row": Card(
        "With large weights a model agrees with its reference on one long row, to 1e-5. Which slip may still be there?",
        ("padding that is seen", "GELU in place of SiLU", "the wrong layout of RoPE's pairs"), "A",
        "One row has no padding. Compare it alone with the same row padded in a batch."),
    "05 cause": Card(
        "A head puts all its weight on the right answer. What shows that the model needs it?",
        ("the picture of its weights", "the loss without it, beside that without other heads", "large weights"), "B",
        "A pattern is no cause: remove it, and compare with nothing, everything and others removed."),
    "06 bits": Card(
        "2 bytes per token, a loss of 2.77 nat per token. How many bits per byte?",
        ("4", "1.4", "2"), "C",
        "2.77 / ln 2 is 4 bits per token, and a token has 2 bytes."),
    "06 good": Card(
        "After 50 steps your loss is below that of lzma. What do you look at first?",
        ("mask and targets", "the learning rate", "the vocabulary"), "A",
        "A loss that is too good is a leak until shown otherwise."),
    "06 pairs": Card(
        "A model was trained on 64 tokens. Which pairs meet new angles at position 200?",
        ("the fast ones", "the slow ones", "all"), "B",
        "A fast pair has gone full circle within 64 tokens."),
    "07 top-p": Card(
        "What does top-p with p = 1e-9 keep?",
        ("no token", "one token", "all tokens"), "B",
        "The token that crosses p stays, so there is always one."),
    "07 bound": Card(
        "1 billion parameters in bfloat16, a memory of 50 GB per second: at most how many tokens per second, one text?",
        ("25", "50", "100"), "A",
        "Each token reads all weights once: 2 GB."),
    "07 mask": Card(
        "A step decodes one token after 500 cached ones. How many cells has its mask, and how many of them hide a key?",
        ("501, and 500", "251,001, and half of them", "501, and none"), "C",
        "One row, and all cached keys lie in the past."),
    "08 windows": Card(
        "Four layers have the windows 6, 6, all, 6. How far back does the last token feel?",
        ("21 tokens", "as far as the text goes", "6 tokens"), "B",
        "One layer that sees all is enough."),
    "08 norm": Card(
        "You multiply W_k of a Qwen3 by 3. What changes?",
        ("all scores", "the angles", "nothing"), "C",
        "Each key is normed behind W_k, which takes the factor away."),
}  # fmt: skip

EARLIER = {  # what a notebook begins with: of the one before, of some before that, and what it needs
    "02": ("01 scale", "01 centre", "00 leak"),
    "03": ("02 shift", "02 zero", "01 blind"),
    "04": ("03 token", "02 layout", "01 centre"),
    "05": ("04 fill", "03 turn", "02 slow"),
    "06": ("05 zero", "03 gate", "00 leak"),
    "07": ("06 good", "04 row", "02 shift"),
    "08": ("07 mask", "05 row", "02 slow"),
    "09": ("07 bound", "04 groups", "03 token"),
}


def from_earlier(notebook: str, *answers: str) -> None:
    """Ask what notebook's learner should still know; or, with answers, say which are right and keep them.

    Args:
        notebook: its number, "02" to "09".
        answers: how sure you are and a letter, one for each question, such as "sure B"; all "?" asks.

    Raises:
        ValueError: if there is no such notebook, or an answer cannot be read; nothing is kept then.
    """
    if notebook not in EARLIER:
        raise ValueError(f"notebook {notebook!r} asks nothing: these do: {', '.join(EARLIER)}.")
    names = EARLIER[notebook]
    if len(answers) != len(names):
        raise ValueError(f"{len(answers)} answers for {len(names)} questions: give one each, '?' for those still open.")
    given = [None if answer == "?" else _read(answer) for answer in answers]
    if None in given:
        for place, name in enumerate(names, start=1):
            print(f"{place}. {_asked(CARDS[name])}\n")
        print('Write all three, how sure first: "sure A", "fairly B" or "guess C". Then run the cell again.')
        return
    kept = _load()
    for place, (name, (sure, letter)) in enumerate(zip(names, given, strict=True), start=1):
        print(f"{place}. {_told(name, letter)}")
        _keep(kept, name, sure, letter)
    _save(kept)


def due(kept: dict, up_to: str, today: datetime.date) -> list[str]:
    """Names of the cards to ask, the most urgent first.

    Args:
        kept: {name: [[day, how sure, right], ...]}, as in the file.
        up_to: number of the last notebook that was done; cards of later ones are left out.
        today: cards whose day has not come are left out.
    """
    found = []
    for name in CARDS:
        answers = kept.get(name, [])
        if name[:2] > up_to or (answers and _next_day(answers) > today):
            continue
        _, sure, right = answers[-1] if answers else ("", "guess", True)
        found.append((right, SURE.index(sure), name))
    return [name for *_, name in sorted(found)]


def _next_day(answers):
    """The day to ask again: after a wrong answer the sooner the surer, after right ones ever later."""
    day, sure, right = answers[-1]
    place, in_a_row = SURE.index(sure), 0
    for *_, was_right in reversed(answers):
        if not was_right:
            break
        in_a_row += 1
    days = (7, 4, 2)[place] * 2 ** (in_a_row - 1) if right else (1, 2, 3)[place]
    return datetime.date.fromisoformat(day) + datetime.timedelta(days=min(days, 365))


def _read(answer):
    match = re.fullmatch(r"\s*(sure|fairly|guess)\W*([ABC])\s*", str(answer), re.IGNORECASE)
    if not match:
        raise ValueError(f'answer {answer!r} cannot be read: write "sure A", "fairly B", "guess C" or "?".')
    return match[1].lower(), match[2].upper()


def _asked(card):
    return "\n".join(
        [card.question, *(f"   {letter}. {text}" for letter, text in zip("ABC", card.choices, strict=True))]
    )


def _told(name, letter):
    card = CARDS[name]
    said = "Right." if letter == card.right else f"No, {card.right}: {card.choices['ABC'.index(card.right)]}."
    return f"{said} {card.why} (notebook {name[:2]})"


def _keep(kept, name, sure, letter):
    """Of several answers on one day the first counts: the others had read why."""
    answers, today = kept.setdefault(name, []), datetime.date.today().isoformat()
    if not answers or answers[-1][0] != today:
        answers.append([today, sure, letter == CARDS[name].right])


def _load():
    if not KEPT.exists():
        return {}
    try:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        for answers in kept.values():
            for day, sure, right in answers:
                datetime.date.fromisoformat(day), SURE.index(sure), bool(right)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{KEPT} cannot be read ({error}): mend it, or move it away to begin anew.") from error
    return kept


def _save(kept):
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    part = KEPT.with_name(f".{KEPT.name}.part")  # written beside and renamed: never half a file
    part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    os.replace(part, KEPT)


def main(arguments=None) -> None:
    """Ask what is due, in the terminal, and keep each answer at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--up-to", help="the last notebook that you have done, such as 05")
    kept, wanted = _load(), parser.parse_args(arguments).up_to
    asked_by = [number for number, names in EARLIER.items() if set(names) <= kept.keys()]
    up_to = wanted or f"{int(max(asked_by, default='02')) - 1:02}"
    names = due(kept, up_to, datetime.date.today())[:MOST]
    print(f"{len(names)} questions are due from notebooks 00 to {up_to}. An empty line stops. Answers: {KEPT}\n")
    for place, name in enumerate(names, start=1):
        print(f"{place}. {_asked(CARDS[name])}")
        answer = _answered()
        if answer is None:
            return
        print(f"   {_told(name, answer[1])}\n")
        _keep(kept, name, *answer)
        _save(kept)


def _answered():
    """How sure, and the letter; None at an empty line or the end of the input."""
    while True:
        try:
            line = input('   "sure A", "fairly B" or "guess C": ')
            return _read(line) if line.strip() else None
        except EOFError:
            return None
        except ValueError as error:
            print(f"   {error}")


if __name__ == "__main__":
    main()
