"""What stays in the head: questions from earlier notebooks, asked again after days, sooner if wrong and sure.

    from_earlier("04", "sure B", "guess A", "fairly C")      # the cell at the top of notebook 04
    python -m checks.recall                                  # make recall: ten minutes of what is due
    from checks.recall import main; main([])                 # the same in a notebook's cell

What was answered is kept in one file on this machine, runs/recall.json: read it, change it, delete it.
"""

import argparse
import contextlib
import datetime
import json
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
        "Hand 7 has not finished a turn in 1,024 tokens: at 4,096 it would meet angles that are new to the model."),
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
        "64 query heads, 8 key/value heads, both counted from 0. Which query heads read key/value head 2?",
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
    "06 parts": Card(
        "Two parts of a batch have 300 and 20 questions. You add half of each part's mean. What of the gradient?",
        ("it is turned", "only its length changes", "nothing"), "A",
        "A question of the second part weighs 15 times as much: divide each sum by all 320."),
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
    "09 learn": Card(
        "A split model has the right logits. What shows that it may be trained?",
        ("a loss that falls", "each gradient beside the whole model's", "the right loss"), "B",
        "A sum in a hook is invisible to autograd: the loss is right and falls, and gradients are parts."),
    "09 merge": Card(
        "Two ranks have the softmax output over their own keys. What makes one output of them?",
        ("their sum", "their mean", "a mean weighted by the denominators"), "C",
        "A row of the whole softmax is divided by the sum of both denominators."),
}  # fmt: skip

EARLIER = {  # what a notebook begins with: of the one before, of some before that, and what it needs
    "02": ("01 scale", "01 centre", "00 leak"),
    "03": ("02 shift", "02 zero", "01 blind"),
    "04": ("03 token", "02 layout", "01 centre"),
    "05": ("04 fill", "03 turn", "02 slow"),
    "06": ("05 zero", "03 gate", "00 leak"),
    "07": ("06 good", "04 row", "02 shift"),
    "08": ("07 mask", "05 row", "02 slow"),
    "09": ("08 windows", "07 bound", "04 groups"),
}


def from_earlier(notebook: str, *answers: str) -> None:
    """Ask what notebook's learner should still know; or, with answers, say which are right and keep them.

    Run again as it stands, by *Run All* on another day, a cell says the same and keeps nothing: nobody remembered.

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
    for place, (name, answer) in enumerate(zip(names, given, strict=True), start=1):
        print(f"{place}. {_told(name, answer)}")
        if kept.get(notebook) != given:
            _keep(kept, name, answer)
    _save(kept | {notebook: given})


def due(kept: dict, up_to: str, today: datetime.date) -> list[str]:
    """Names of the cards to ask, at most MOST: those that wait the shortest time first, then two new ones or more.

    Args:
        kept: {name: [day to ask it, days that it waits]}, as in the file.
        up_to: number of the last notebook that was done; cards of later ones are left out.
        today: cards whose day has not come are left out.
    """
    known = [name for name in CARDS if name[:2] <= up_to]
    new = [name for name in known if name not in kept]
    waiting = {name: kept[name] for name in known if name in kept}
    again = sorted((days, name) for name, (day, days) in waiting.items() if day <= str(today))
    asked = [name for _, name in again][: MOST - min(2, len(new))]
    return asked + new[: MOST - len(asked)]


def _read(answer):
    match = re.fullmatch(r"\s*(sure|fairly|guess)\W*([ABC])\s*", str(answer), re.IGNORECASE)
    if not match:
        raise ValueError(f'answer {answer!r} cannot be read: write "sure A", "fairly B", "guess C" or "?".')
    return [match[1].lower(), match[2].upper()]


def _asked(card):
    choices = (f"   {letter}. {text}" for letter, text in zip("ABC", card.choices, strict=True))
    return "\n".join([card.question, *choices])


def _told(name, answer):
    card = CARDS[name]
    said = "Right." if answer[1] == card.right else f"No, {card.right}: {card.choices['ABC'.index(card.right)]}."
    return f"{said} {card.why} (notebook {name[:2]})"


def _keep(kept, name, answer):
    """Right twice in a row waits twice as long. Of several answers on one day the first counts: the others read why."""
    (sure, letter), today = answer, datetime.date.today()
    day, days = kept.get(name, ("", 1))
    if day < str(today + datetime.timedelta(days)):  # not asked today
        knew = letter == CARDS[name].right and sure != "guess"
        days = min(2 * days + 2, 365) if knew else 1 + SURE.index(sure)
        kept[name] = [str(today + datetime.timedelta(days)), days]


def _load():
    """The file: when each card is asked again, and what stood in each notebook's cell."""
    try:
        kept = dict(json.loads(KEPT.read_text(encoding="utf-8"))) if KEPT.exists() else {}
        due(kept, "99", datetime.date.max)  # reads every card
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(f"{KEPT} cannot be read ({error}): mend it, or move it away to begin anew.") from error
    return kept


def _save(kept):
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    part = KEPT.with_name(f".{KEPT.name}.part")  # written beside and renamed: never half a file
    part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    part.replace(KEPT)


def main(arguments=None) -> None:
    """Ask what is due, in the terminal, and keep each answer at once."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--up-to", choices=[f"{n:02}" for n in range(10)], help="the last notebook that you have done")
    kept, wanted = _load(), parser.parse_args(arguments).up_to
    begun = max((number for number in EARLIER if number in kept), default="01")
    up_to = wanted or (begun if begun == max(EARLIER) else f"{int(begun) - 1:02}")  # no notebook comes after the last
    names = due(kept, up_to, datetime.date.today())
    are = "question is" if len(names) == 1 else "questions are"
    print(f"{len(names)} {are} due from notebooks 00 to {up_to}. An empty line stops. Answers: {KEPT}\n")
    for place, name in enumerate(names, start=1):
        print(f"{place}. {_asked(CARDS[name])}")
        if not (answer := _answered()):
            return
        print(f"   {_told(name, answer)}\n")
        kept = _load()  # a notebook may have kept answers meanwhile
        _keep(kept, name, answer)
        _save(kept)


def _answered():
    """How sure, and the letter; None at an empty line or the end of the input."""
    with contextlib.suppress(EOFError):
        while line := input('   "sure A", "fairly B" or "guess C": ').strip():
            try:
                return _read(line)
            except ValueError as error:
                print(f"   {error}")


if __name__ == "__main__":
    main()
