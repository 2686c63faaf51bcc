"""The explorers of notebook 07: a model writes, token by token, and with drafts; and repeats in texts."""

import functools

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from explorers.base import GREY, PALE, Explorer, bare, bundled, hide_future, readable, slider, switch
from helpers.corpus import load_text, train_val_split
from helpers.generate import next_token_probabilities
from helpers.interventions import attention_by_layer
from helpers.model import causal_visible
from helpers.plots import HATCH, HIDDEN, INK, KEY
from helpers.text import encode, load_tokenizer

PROMPT, N, BARS, COLUMNS, HEAT = "The value of the argument is", 32, 14, 92, 0.8
CACHED, WHOLE = WAYS = ("with a cache", "without a cache")
TEMPERATURES = torch.arange(21) / 10
OLD_KEY = "#F3C9AE"


def explore_writing() -> Explorer:
    """The bundled model writes: its text so far, and the probabilities from which the newest token was drawn."""
    model, tokenizer, n_prompt, texts = _written()
    picture = _Draw(tokenizer, n_prompt)

    @functools.cache  # the slider of the token asks again and again
    def read(temperature):
        text = texts[round(10 * temperature)]
        logits = model(text[None])[0, n_prompt - 1 : -1]
        return text, next_token_probabilities(logits, temperature), _sure(logits, text[n_prompt:])

    def draw(new, temperature):
        text, shares, own = read(temperature)
        at = n_prompt + new - 1
        picture.page.show(text[: at + 1].tolist(), own)
        return picture.show(text[at].item(), shares[new - 1])

    controls = {
        "new": slider("new token", 20, 1, N - n_prompt),
        "temperature": slider("temperature", HEAT, 0.0, 2.0, 0.1),
    }
    alt = "A text that is written, its newest token framed. Below, a bar for each of the likeliest tokens, as high as "
    return Explorer(picture.figure, draw, controls, alt + "its probability; the token that came is orange.")


def explore_steps() -> Explorer:
    """What a step computes, row by row of the mask, and what the cache keeps for it."""
    model, tokenizer, n_prompt, texts = _written()
    text = texts[round(10 * HEAT)]
    own = _sure(model(text[None])[0, n_prompt - 1 : -1], text[n_prompt:])
    picture = _Step(tokenizer, n_prompt, attention_by_layer(model, text[None]).mean((0, 1)))

    def draw(new, way):
        at = n_prompt + new - 1  # the step reads the token before `at` and writes the one at it
        picture.page.show(text[: at + 1].tolist(), own)
        return picture.show(at, way)

    controls = {"new": slider("new token", 20, 1, N - n_prompt), "way": switch("the step", WAYS)}
    alt = "A text that is written. Below, attention weights, a row for each query and a column for each key: dark in "
    return Explorer(
        picture.figure, draw, controls, alt + "this step, pale in earlier ones. Under them the slots of the cache."
    )


def _written():
    model, tokenizer = bundled(), load_tokenizer()
    prompt, numbers = encode(tokenizer, PROMPT), torch.rand(N, generator=torch.Generator().manual_seed(0))
    return model, tokenizer, len(prompt), _all_texts(model, prompt, numbers)


def _sure(logits, tokens):
    return logits.softmax(-1)[range(len(tokens)), tokens].tolist()


class _Page:  # a figure with the text on top; a new token is the darker, the likelier it was; the newest has a frame
    def __init__(self, tokenizer, n_prompt):
        self.tokenizer, self.n_prompt = tokenizer, n_prompt
        self.figure = Figure(figsize=(8.4, 5.2), dpi=110, facecolor="white", layout="none")
        self.ax = page = self.figure.add_axes((0.025, 0.83, 0.95, 0.11))
        bare(page, (0, COLUMNS), (2, 0), "auto")
        self.boxes = page.add_collection(PolyCollection([], lw=0.6))
        self.frame = page.add_collection(PolyCollection([], fc="none"))
        style = {"family": "monospace", "fontsize": 9, "va": "center", "ha": "center", "parse_math": False, "zorder": 4}
        self.words = [page.text(0, 0, "", **style) for _ in range(N)]

    def show(self, tokens, own):
        words, boxes, colors = [self.tokenizer.decode([token]).replace("\n", "↵") for token in tokens], [], []
        for i, (word, (x, y)) in enumerate(zip(words, _in_lines(words, COLUMNS), strict=True)):
            sure = own[i - self.n_prompt] if i >= self.n_prompt else 0
            boxes.append(_box(x, x + len(word), y + 0.1, y + 0.9))
            colors.append(str(1 - 0.75 * sure) if i >= self.n_prompt else "#EAF2FA")
            self.words[i].set(position=(x + len(word) / 2, y + 0.5), text=word, color="white" if sure > 0.6 else INK)
        for label in self.words[len(words) :]:
            label.set_text("")
        self.boxes.set(verts=boxes, facecolors=colors, edgecolors=HATCH)
        self.frame.set(verts=boxes[-1:], edgecolors=KEY, linewidths=2)

    def says(self, words):
        self.ax.set_title(words, fontsize=9.5, loc="left")


class _Draw:  # the picture: the text, and bars of the likeliest tokens
    def __init__(self, tokenizer, n_prompt):
        self.tokenizer, self.page = tokenizer, _Page(tokenizer, n_prompt)
        self.figure = self.page.figure
        bars = self.figure.add_axes((0.065, 0.05, 0.91, 0.66))
        bare(bars, (-0.6, BARS - 0.4), (0, 1), "auto")
        bars.text(-0.6, 1.03, "What may come next, and with which probability", fontsize=9.5, va="bottom")
        for y in (0, 0.5, 1):
            bars.plot([-0.6, BARS - 0.4], [y, y], color=HIDDEN, lw=0.8, zorder=0)
            bars.text(-0.7, y, y, ha="right", va="center", fontsize=9)
        self.bars = bars.bar(range(BARS), [0] * BARS, width=0.8, color=PALE)
        slanted = {"rotation": 40, "rotation_mode": "anchor", "fontsize": 9, "parse_math": False, "zorder": 4}
        self.names = [bars.text(x - 0.1, 0, "", **slanted) for x in range(BARS)]

    def show(self, token, shares):
        best, order = shares.topk(BARS)
        for bar, label, share, one in zip(self.bars, self.names, best.tolist(), order.tolist(), strict=True):
            bar.set(height=share, color=KEY if one == token else PALE)
            label.set(text=readable(self.tokenizer, one) if share else "", y=min(share, 0.75) + 0.03)
        came = f"“{readable(self.tokenizer, token)}” comes next, with probability {shares[token]:.2g}"
        self.page.says(came)
        return f"{came}. The highest bar: {best[0]:.2f}."


class _Step:  # the picture: the text, the mask row by row, and the slots of the cache
    def __init__(self, tokenizer, n_prompt, weights):
        self.n_prompt, self.weights, self.page = n_prompt, weights, _Page(tokenizer, n_prompt)
        self.figure = self.page.figure
        mask, kept = self.figure.add_axes((0.07, 0.15, 0.41, 0.62)), self.figure.add_axes((0.07, 0.03, 0.41, 0.04))
        bare(mask, (-0.5, N - 0.5), (N - 0.5, -0.5), "auto")
        bare(kept, (-0.5, N - 0.5), (0, 1), "auto")
        hide_future(mask, N, zorder=2)
        end, box = n_prompt - 0.5, {"fc": HIDDEN, "lw": 0, "pad": 1}
        mask.plot([end, N - 0.5], [end, end], color=INK, lw=1, ls=":", zorder=3)
        mask.text(N - 1, end - 0.5, "prompt", ha="right", fontsize=9, bbox=box, zorder=3)
        mask.text(-1, N / 2, "query", rotation=90, ha="right", va="center", fontsize=9)
        mask.text(N / 2, N + 0.2, "key", ha="center", va="center", fontsize=9)
        image = functools.partial(mask.imshow, torch.zeros(N, N).numpy(), cmap="Blues", aspect="auto")
        self.past, self.now = image(vmin=-0.2, vmax=1.6), image(vmin=-0.12, vmax=0.3)
        self.slots = kept.add_collection(PolyCollection([_box(i - 0.5, i + 0.4) for i in range(N)]))
        says = (
            "dark: attention weights of this step",
            "pale: weights of earlier steps",
            "grey: hidden, the key is later",
        )
        for y, words in zip((0.62, 0.54, 0.46), says, strict=True):
            self.figure.text(0.51, y, words, fontsize=9.5, va="center")
        words = "slots of the cache: orange, written in this step;\npale, written in earlier steps"
        self.figure.text(0.51, 0.05, words, fontsize=9.5, va="center")

    def show(self, at, way):
        cached, slots, visible = way == CACHED, torch.arange(N), causal_visible(N, N)
        computed = slots < at if not cached or at == self.n_prompt else slots == at - 1  # as rows, and as keys
        before = (slots < at) & ~computed
        self.now.set_data(self.weights.masked_fill(~(visible & computed[:, None]), torch.nan).numpy())
        self.past.set_data(self.weights.masked_fill(~(visible & before[:, None]), torch.nan).numpy())
        filled = [KEY if new else OLD_KEY for new in computed[:at].tolist()] if cached else []
        self.slots.set(facecolors=[*filled, *["white"] * (N - len(filled))], edgecolors=HATCH, linewidths=0.5)
        count = (visible & computed[:, None]).sum()
        self.page.says(f"This step computes {count} attention weights in each head")
        return (
            f"The step {way} turns {computed.sum()} of {at} keys, and computes {count} attention weights in each head."
        )


def _in_lines(words, columns):
    # Column and line in which each word begins.
    x, y = 0, 0
    for word in words:
        x, y = (0, y + 1) if x + len(word) > columns else (x, y)
        yield x, y
        x += len(word)


def _box(left, right, low=0, high=1):
    return [(left, low), (right, low), (right, high), (left, high)]


def _all_texts(model, start, numbers):
    # The texts of all temperatures, (temperature, N), written at once: the weights are read once for all. Where each
    # number falls on the line of probabilities says which token comes.
    divisors = TEMPERATURES.clamp(min=1e-4)[:, None]
    texts = read = start.expand(len(divisors), -1)
    cache = model.new_cache(len(texts), N)
    while texts.shape[1] < N:
        shares = (model(read, cache, last_only=True)[:, -1] / divisors).softmax(-1)
        read = _picked(shares, numbers[texts.shape[1]].expand(len(divisors)))[:, None]
        texts = torch.cat([texts, read], dim=1)
    return texts


NEW, LINES, N_TEXTS = 48, 4, 4  # tokens of each text, lines that are shown, texts of the means
HEATS = [n / 5 for n in range(8)]
COPIED, EQUAL, JUDGED = "copied", "drawn, kept if equal", "drawn, kept with min(1, p/q)"
REFUSED = "#B00020"
LOOKS = {  # of a token, by what became of it
    "stays": {"color": INK}, "own": {"color": "white", "weight": "bold"}, "refused": {"color": REFUSED},
    "given": {"color": GREY},
}  # fmt: skip
FILLS = {"stays": ("#DEDAF3", "#F5E8C8"), "own": ("#4B3F8F", "#8F6A1F"), "refused": ("#F4F4F4",) * 2}  # calls in turns


def explore_drafts() -> Explorer:
    """A text, one colour for each call of the model: what stays of its draft, its own token, the refused one."""
    model, small, tokenizer = bundled(), bundled(), load_tokenizer()
    for matrix in small.parameters():
        if matrix.ndim == 2:
            matrix.copy_(_rounded(matrix))
    tokens = encode(tokenizer, train_val_split(load_text(None))[1])
    starts = tokens[2500 * torch.arange(N_TEXTS)[:, None] + torch.arange(16)]
    texts = {judged: _with_drafts(model, small, starts, judged) for judged in (False, True)}
    picture = _Drafts(tokenizer)

    @functools.cache
    def calls(way, heat, row, n_draft, n_match):
        text, guesses, kept = (one[heat][row] for one in texts[way == JUDGED])
        return _calls(text, starts.shape[1], n_draft, n_match, *(() if way == COPIED else (guesses, kept)))

    def draw(way, temperature, n_draft, n_match):
        curves = {rule: [N_TEXTS * NEW / sum(len(calls(rule, one, row, n_draft, n_match)) for row in range(N_TEXTS))
                         for one in range(len(HEATS))] for rule in (COPIED, EQUAL, JUDGED)}  # fmt: skip
        heat = round(5 * temperature)
        shown = calls(way, heat, 0, n_draft, n_match)
        picture.show_text(starts[0].tolist(), shown)
        picture.show_counts(len(shown), curves, way, temperature)
        n_stay, n_refused = sum(len(stays) for stays, *_ in shown), sum(refused is not None for *_, refused in shown)
        return (
            f"This text of {NEW} new tokens took {len(shown)} calls; {n_stay} stayed from drafts, "
            f"{n_refused} were refused. Four texts at this temperature: {curves[way][heat]:.2f} tokens per call."
        )

    controls = {
        "way": switch("the draft is", (EQUAL, JUDGED, COPIED)),
        "temperature": slider("temperature", 0.0, 0.0, 1.4, 0.2),
        "n_draft": slider("length of the draft [token]", 4, 0, 8),
        "n_match": slider("length of match (copied) [token]", 1, 1, 4),
    }
    alt = "A text in coloured boxes: pale, stays from a draft; dark, the model's own token; struck through, refused. "
    alt += "Below: tokens per call against temperature, a curve for each of the three rules."
    return Explorer(picture.figure, draw, controls, alt)


class _Drafts:  # the picture: the text with its legend, and a curve for each rule
    def __init__(self, tokenizer):
        self.tokenizer, self.figure = tokenizer, Figure(figsize=(8.4, 4.9), dpi=110, facecolor="white", layout="none")
        self._add_text(self.figure.add_axes((0.025, 0.52, 0.95, 0.36)))
        self._add_legend(0.945)
        ax = self.figure.add_axes((0.06, 0.11, 0.6, 0.32))
        ax.set(xlim=(-0.04, 1.42), ylim=(0, 6.6), xticks=[0, 0.4, 0.8, 1.2], yticks=[1, 3, 5], xlabel="temperature")
        ax.set_title("Tokens that a call adds, mean of four texts", loc="left", fontsize=9.5)
        ax.axhline(1, color=HATCH, lw=1, ls=":", zorder=0)
        ax.text(0, 0.85, "without drafts", color=GREY, fontsize=9, va="top")
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=9)
        self.curves = {rule: ax.plot([], [], lw=2)[0] for rule in (COPIED, EQUAL, JUDGED)}
        self.ends = {rule: ax.text(1.44, 0, rule, fontsize=9, va="center") for rule in self.curves}
        (self.dot,) = ax.plot([], [], "o", color=INK)

    def _add_text(self, ax):
        style = {"family": "monospace", "fontsize": 11, "va": "center", "parse_math": False, "zorder": 4}
        ruler = ax.text(0, 0, 50 * "m", **style)  # letters are whole pixels wide
        fifty = ruler.get_window_extent(FigureCanvasAgg(self.figure).get_renderer()).width
        self.columns = 50 * ax.bbox.width / fifty
        ruler.remove()
        bare(ax, (0, self.columns), (LINES, 0), "auto")
        kinds = LOOKS.items()
        self.labels = [{kind: ax.text(0, y + 0.5, "", **style, **look) for kind, look in kinds} for y in range(LINES)]
        self.boxes = ax.add_collection(PolyCollection([], lw=0))
        self.struck = ax.add_collection(LineCollection([], colors=REFUSED, lw=1, zorder=5))

    def _add_legend(self, y):
        names = {"stays": (0.03, "stays from the draft"), "own": (0.23, "the model's own"), "refused": (0.4, "refused")}
        for kind, (x, name) in names.items():
            box = {"fc": FILLS[kind][0], "lw": 0, "pad": 2}
            self.figure.text(x, y, name, fontsize=9.5, va="center", bbox=box, **LOOKS[kind])
        self.figure.add_artist(Line2D([0.398, 0.462], [y, y], color=REFUSED, lw=1, zorder=9))
        self.figure.text(0.475, y, "and the rest of its draft is dropped", fontsize=9.5, va="center", color=GREY)
        self.head = self.figure.text(0.975, y, "", fontsize=9.5, ha="right", va="center")

    def show_text(self, prompt, calls):  # the prompt, and what each call adds to it, as far as there are lines
        pieces = [(token, "given", 0) for token in prompt]
        for i, (stays, own, refused) in enumerate(calls):
            pieces += [(token, "stays", i) for token in stays]
            pieces += [(refused, "refused", i)] * (refused is not None) + [(own, "own", i)]
        words = [self.tokenizer.decode([token]).replace("\n", "↵").replace("    ", " ") for token, *_ in pieces]
        lines, boxes, colors, strokes = [dict.fromkeys(LOOKS, "") for _ in range(LINES)], [], [], []
        for word, (_, kind, i), (x, y) in zip(words, pieces, _in_lines(words, self.columns), strict=True):
            if y == LINES:
                break
            lines[y][kind] = lines[y][kind].ljust(x) + word
            if kind != "given":
                boxes.append(_box(x, x + len(word), y + 0.1, y + 0.9))
                colors.append(FILLS[kind][i % 2])
            if kind == "refused":
                strokes.append([(x, y + 0.5), (x + len(word), y + 0.5)])
        for labels, line in zip(self.labels, lines, strict=True):
            for kind, label in labels.items():
                text = line[kind].lstrip()  # without blanks, which take time
                label.set(text=text, x=len(line[kind]) - len(text))
        self.boxes.set(verts=boxes, facecolors=colors)
        self.struck.set(segments=strokes)

    def show_counts(self, n_calls, curves, way, temperature):
        y = 0
        for rule, heights in curves.items():
            y, color = max(heights[-1], y + 0.6), INK if rule == way else GREY
            self.curves[rule].set(data=(HEATS, heights), color=color if rule == way else PALE)
            self.ends[rule].set(y=y, color=color)
        self.dot.set_data([temperature], [curves[way][round(5 * temperature)]])
        self.head.set_text(f"{NEW} tokens in {n_calls} calls")


def _rounded(weight):
    # To 4 bits, with a scale for each row that gives its largest weight the largest number, 7, as in notebook 07.
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-30) / 7
    return (weight / scale).round() * scale


@torch.no_grad()
def _with_drafts(model, small, starts, judged):
    # For each temperature and text: its tokens; at each new place what the small model draws there, and whether it
    # stays. Random numbers belong to places, so that no length of a draft changes the text.
    n, heats = len(starts), torch.tensor(HEATS)[:, None, None]
    numbers = torch.rand(NEW, 3, n, generator=torch.Generator().manual_seed(3)).repeat(1, 1, len(HEATS))
    read, caches = starts.repeat(len(HEATS), 1), [(one, one.new_cache(n * len(HEATS), 80)) for one in (model, small)]
    texts, guesses, kept = [*read.T], [], []
    for draft, chance, own in numbers:
        p, q = (one(read, cache, last_only=True).view(len(HEATS), n, -1) for one, cache in caches)
        p, q = ((logits / heats.clamp(min=1e-3)).softmax(-1).flatten(0, 1) for logits in (p, q))
        guess = _picked(q, draft)
        p_guess, q_guess = (one.gather(1, guess[:, None])[:, 0] for one in (p, q))
        stays = chance * q_guess < p_guess if judged else guess == _picked(p, own)
        token = torch.where(stays, guess, _picked((p - q).clamp(min=0) + 1e-20 * p if judged else p, own))
        read = token[:, None]
        texts.append(token)
        guesses.append(guess)
        kept.append(stays)
    return [torch.stack(one, 1).unflatten(0, (-1, n)).tolist() for one in (texts, guesses, kept)]


def _picked(shares, numbers):
    # Where a number falls on the line of shares, the likeliest first.
    ordered, order = shares.sort(descending=True, stable=True)
    sums = ordered.cumsum(-1)
    return order.gather(1, (sums < numbers[:, None] * sums[:, -1:]).sum(-1, keepdim=True))[:, 0]


def _calls(text, n_prompt, n_draft, n_match, guesses=(), kept=()):
    # [(tokens that stay, the model's own, the refused one or None)] of each call; without guesses drafts are copied.
    calls, at = [([], text[n_prompt], None)], n_prompt + 1  # the first call reads the prompt
    while at < len(text):
        if guesses:
            draft, right = (one[at - n_prompt :][:n_draft] for one in (guesses, kept))
        else:
            draft = _copied(text[:at], n_draft, n_match)
            right = [guess == token for guess, token in zip(draft, text[at:], strict=False)]
        n_right = [*right, False].index(False)
        n_stay = min(n_right, len(text) - at - 1)  # the last token is the model's own
        refused = draft[n_stay] if n_stay < len(right) and not right[n_stay] else None
        calls.append((text[at : at + n_stay], text[at + n_stay], refused))
        at += n_stay + 1
    return calls


def _copied(text, n_draft, n_match):
    # What followed where the newest tokens were last.
    ends = [end for end in range(n_match, len(text)) if text[end - n_match : end] == text[-n_match:]]
    return text[ends[-1] :][:n_draft] if ends else []


def repeats(rows: torch.Tensor, n_prompt: int = 16, run: int = 8, apart: int = 0) -> torch.Tensor:
    """Which new tokens belong to a run of tokens that stood in the same text before, behind its prompt.

    Args:
        rows: prompts and what follows them, (B, n_prompt + new) int64.
        run: how many equal tokens in a row count as a repeat.
        apart: count only repeats whose nearest earlier copy begins more than this many tokens before.

    Returns:
        (B, new) bool.

    Example:
        >>> repeats(torch.tensor([[9, 1, 2, 3, 1, 2, 4]]), n_prompt=1, run=2).int()
        tensor([[0, 0, 0, 1, 1, 0]], dtype=torch.int32)
    """
    found = torch.zeros_like(rows[:, n_prompt:], dtype=torch.bool)
    for row, marks in zip(rows[:, n_prompt:].tolist(), found, strict=True):
        last = {}
        for start in range(len(row) - run + 1):
            piece = tuple(row[start : start + run])
            marks[start : start + run] |= start - last.get(piece, start) > apart
            last[piece] = start
    return found
