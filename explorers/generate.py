"""The explorers of notebook 07: a model writes, token by token, and with drafts; and repeats in texts."""

import functools
from itertools import pairwise

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from explorers.base import GREY, PALE, Explorer, arc, bare, bundled, hide_future, readable, slider, switch
from helpers.corpus import load_text, train_val_split
from helpers.generate import next_token_probabilities
from helpers.interventions import attention_by_layer
from helpers.model import causal_visible, rope_angles
from helpers.plots import HATCH, HIDDEN, INK, KEY, QUERY
from helpers.text import encode, load_tokenizer

PROMPT, N, BARS, PAIR, COLUMNS = "The value of the argument is", 32, 14, 3, 92
DRAW, *WAYS = SHOWN = ("the draw", "the step, with a cache", "the step, without a cache")
CACHED = WAYS[0]
TEMPERATURES, TOP_PS = torch.arange(21) / 10, [n / 10 for n in range(1, 11)]
MAP = (-0.5, N - 0.5)
PANELS = {  # left, bottom, width, height, in shares of the picture; limits of x and y; title
    "page": (0.025, 0.83, 0.95, 0.11, (0, COLUMNS), (2, 0), ""),
    "bars": (0.065, 0.27, 0.91, 0.42, (-0.6, BARS - 0.4), (0, 1), "What may come next, and with which probability"),
    "line": (0.065, 0.07, 0.91, 0.06, (0, 1), (0, 1), "The draw: a random number falls on a line"),
    "clock": (0.08, 0.42, 0.28, 0.30, (-1.1, 1.1), (-1.1, 1.1), "Angles of frequency pair 3"),
    "work": (0.085, 0.09, 0.24, 0.2, (6, N), (0, 42), "Multiplications [million]"),
    "mask": (0.52, 0.21, 0.455, 0.53, MAP, (N - 0.5, -0.5), "Who attends to whom; dark: computed in this step"),
    "kept": (0.52, 0.05, 0.455, 0.035, MAP, (0, 1), "Slots of the cache; dark: written in this step"),
}
IN_DRAW = ("bars", "line")


def explore_writing() -> Explorer:
    """The bundled model writes: the draw of a token; or what its step computes, what the cache keeps, and the work."""
    model, tokenizer = bundled(), load_tokenizer()
    prompt, numbers = encode(tokenizer, PROMPT), torch.rand(N, generator=torch.Generator().manual_seed(0))
    n_prompt, texts = len(prompt), _all_texts(model, prompt, numbers)
    picture = _Writing(model, tokenizer, n_prompt, numbers)

    @functools.cache  # the slider of the token asks again and again
    def read(temperature, top_p):
        text = texts[TOP_PS.index(round(top_p, 1)), round(10 * temperature)]
        logits, weights = model(text[None])[0, n_prompt - 1 : -1], attention_by_layer(model, text[None]).mean((0, 1))
        shares = next_token_probabilities(logits, temperature, None, top_p)
        own = logits.softmax(-1)[range(N - n_prompt), text[n_prompt:]].tolist()
        return text, shares, own, weights

    def draw(new, temperature, top_p, show):
        text, shares, own, weights = read(temperature, top_p)
        at = n_prompt + new - 1  # the step reads the token before `at` and writes the one at it
        picture.show_panels(show == DRAW)
        picture.show_text(text[: at + 1].tolist(), own)
        if show == DRAW:
            return picture.show_draw(at, text[at].item(), shares[new - 1])
        return picture.show_step(at, weights, show)

    controls = {
        "new": slider("new token", 20, 1, N - n_prompt),
        "temperature": slider("temperature", 0.8, 0.0, 2.0, 0.1),
        "top_p": slider("top-p", 0.9, 0.1, 1.0, 0.1),
        "show": switch("show", SHOWN),
    }
    alt = "A text that is written. Below, the draw: probabilities, and a number on a line. Or the step: attention row "
    return Explorer(picture.figure, draw, controls, alt + "by row, slots of the cache, a hand for each key, the work.")


class _Writing:  # the picture: its panels, what is fixed and what moves in them (_add_…), and how it moves (show_…)
    def __init__(self, model, tokenizer, n_prompt, numbers):
        self.tokenizer, self.n_prompt, self.numbers = tokenizer, n_prompt, numbers
        self.figure, axes = Figure(figsize=(8.4, 5.2), dpi=110, facecolor="white", layout="none"), {}
        for name, (*place, x, y, title) in PANELS.items():
            axes[name] = ax = self.figure.add_axes(place)
            bare(ax, x, y, "equal" if name == "clock" else "auto")
            height = 1.5 if name == "line" else 1.03
            ax.text(0, height, title, transform=ax.transAxes, fontsize=9.5, va="bottom")
            ax.patch.set_visible(False)
        self._add_text(axes["page"])
        self._add_draw(axes["bars"], axes["line"])
        self._add_step(axes["clock"], axes["work"], model)
        self._add_mask(axes["mask"], axes["kept"])
        self.leaves = [(name in IN_DRAW, leaf) for name, ax in axes.items() if name != "page"
                       for leaf in ax.findobj(lambda one: not one.get_children()) if leaf.get_visible()]  # fmt: skip

    def _add_text(self, page):
        self.page, self.boxes = page, page.add_collection(PolyCollection([], lw=0.6))
        self.frame = page.add_collection(PolyCollection([], fc="none"))
        style = {"family": "monospace", "fontsize": 9, "va": "center", "ha": "center", "parse_math": False, "zorder": 4}
        self.words = [page.text(0, 0, "", **style) for _ in range(N)]

    def _add_draw(self, bars, line):
        for y in (0, 0.5, 1):
            bars.plot([-0.6, BARS - 0.4], [y, y], color=HIDDEN, lw=0.8, zorder=0)
            bars.text(-0.7, y, y, ha="right", va="center", fontsize=9)
        self.bars = bars.bar(range(BARS), [0] * BARS, width=0.8, color=PALE)
        slanted = {"rotation": 40, "rotation_mode": "anchor", "fontsize": 9, "parse_math": False, "zorder": 4}
        self.names = [bars.text(x - 0.1, 0, "", **slanted) for x in range(BARS)]
        self.pieces = line.add_collection(PolyCollection([]))
        (self.number,) = line.plot([], [], "v", color=INK, ms=8, clip_on=False)

    def _add_step(self, clock, work, model):
        clock.plot(*arc(0, 6.3, 1), color=HIDDEN, lw=1)
        for y, name, color in ((-0.4, "the query", QUERY), (-0.65, "keys", KEY)):
            clock.text(0, y, name, color=color, fontsize=9, ha="center", va="center")
        self.hands = clock.add_collection(LineCollection([], lw=1.2))
        (self.query,) = clock.plot([], [], color=QUERY, lw=3)
        angles = rope_angles(torch.arange(N), model.inv_freq)[:, PAIR]
        self.tips = torch.view_as_real(torch.polar(torch.ones(N), angles))  # of hands, (N, 2)
        n_prompt, lengths = self.n_prompt, range(self.n_prompt, N)
        self.works = {way: [_work(model.config, n, way == CACHED and n > n_prompt) for n in lengths] for way in WAYS}
        for way, curve in self.works.items():
            work.plot(lengths, curve, color=HIDDEN)
            work.text(N, curve[-1], f" {way.split()[2]}", fontsize=8.5, color=GREY, va="center")  # with, without
        work.plot([n_prompt, n_prompt, N], [42, 0, 0], color=INK, lw=0.8)
        for x, y, words in ((n_prompt, -7, n_prompt), (N, -7, N), (19, -7, "tokens so far"), (4.5, 0, 0), (4, 40, 40)):
            work.text(x, y, words, ha="center", va="center", fontsize=8.5)
        (self.curve,), (self.dot,) = work.plot([], [], color=INK), work.plot([], [], "o", color=INK)

    def _add_mask(self, mask, kept):
        hide_future(mask, N, zorder=2)
        end, box = self.n_prompt - 0.5, {"fc": HIDDEN, "lw": 0, "pad": 1}
        mask.plot([end, N - 0.5], [end, end], color=INK, lw=1, ls=":", zorder=3)
        mask.text(N - 1, end - 0.5, "prompt", ha="right", fontsize=9, bbox=box, zorder=3)
        mask.text(-1, N / 2, "query", rotation=90, ha="right", va="center", fontsize=9)
        mask.text(N / 2, N + 0.2, "key", ha="center", va="center", fontsize=9)
        image = functools.partial(mask.imshow, torch.zeros(N, N).numpy(), cmap="Blues", aspect="auto")
        self.past, self.now = image(vmin=-0.2, vmax=1.6), image(vmin=-0.12, vmax=0.3)
        self.slots = kept.add_collection(PolyCollection([_box(i - 0.5, i + 0.4) for i in range(N)]))

    def show_panels(self, of_draw):
        for in_draw, leaf in self.leaves:
            if leaf.get_visible() != (in_draw == of_draw):
                leaf.set_visible(in_draw == of_draw)

    def show_text(self, tokens, own):  # a new token is the darker, the likelier it was; the newest has a frame
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

    def show_draw(self, at, token, shares):  # bars of the likeliest tokens; a line of all, on which the number falls
        best, order = shares.sort(descending=True, stable=True)
        ends, order = [0, *best.cumsum(0).tolist()], order.tolist()
        for bar, name, share, one in zip(self.bars, self.names, best.tolist(), order, strict=False):
            bar.set(height=share, color=KEY if one == token else PALE)
            name.set(text=readable(self.tokenizer, one) if share else "", y=min(share, 0.75) + 0.04)
        place = order.index(token)
        pieces = [*pairwise([*ends[:200], 1]), ends[place : place + 2]]  # one grey piece for the many last ones
        boxes, colors = [_box(left, right) for left, right in pieces], [*(PALE, GREY) * 100, KEY]
        self.pieces.set(verts=boxes, facecolors=colors, edgecolors="none")
        self.number.set_data([self.numbers[at]], [1.15])
        count, name = int((shares > 0).sum()), readable(self.tokenizer, token)
        says = f"“{name}” is one of {count} token{'s' * (count > 1)} that can come here"
        self.page.set_title(says, fontsize=9.5, loc="left")
        return f"“{name}” is drawn with probability {shares[token]:.2g}; {count} of 1,024 tokens can be drawn."

    def show_step(self, at, weights, way):  # what it computes, what it has from the cache, and how much work that is
        cached, slots, visible = way == CACHED, torch.arange(N), causal_visible(N, N)
        computed = slots < at if not cached or at == self.n_prompt else slots == at - 1  # as rows, and as keys
        before = (slots < at) & ~computed
        self.now.set_data(weights.masked_fill(~(visible & computed[:, None]), torch.nan).numpy())
        self.past.set_data(weights.masked_fill(~(visible & before[:, None]), torch.nan).numpy())
        colors = [KEY if new else "#F3C9AE" for new in computed[:at].tolist()]  # pale: from earlier steps
        filled = colors if cached else []
        self.slots.set(facecolors=[*filled, *["white"] * (N - len(filled))], edgecolors=HATCH, linewidths=0.5)
        self.hands.set(segments=[[(0, 0), tip] for tip in self.tips[:at].tolist()], colors=colors)
        x, y = 0.75 * self.tips[at - 1]
        self.query.set_data([0, x], [0, y])
        count, work = (visible & computed[:, None]).sum(), self.works[way][at - self.n_prompt]
        self.curve.set_data(range(self.n_prompt, N), self.works[way])
        self.dot.set_data([at], [work])
        words = f"This step computes {count} of the triangle's {at * (at + 1) // 2} attention weights"
        self.page.set_title(words, fontsize=9.5, loc="left")
        return (
            f"{way.capitalize()}: it turns {computed.sum()} of {at} keys, computes {count} attention weights in each "
            f"head, and multiplies {work:.1f} million times."
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
    # The texts of all settings, (top-p, temperature, N), written at once: the weights are read once for all. Where each
    # number falls on its line says which token comes.
    divisors, n_cuts = TEMPERATURES.clamp(min=1e-4)[:, None], len(TOP_PS)
    texts = read = start.expand(n_cuts * len(divisors), -1)
    cache = model.new_cache(len(texts), N)
    while texts.shape[1] < N:
        logits = model(read, cache, last_only=True).view(n_cuts, len(divisors), -1) / divisors
        shares = torch.cat([next_token_probabilities(logits[i], 1.0, None, top_p) for i, top_p in enumerate(TOP_PS)])
        ordered, order = shares.sort(descending=True, stable=True)
        place = (ordered.cumsum(-1) < numbers[texts.shape[1]]).sum(-1).clamp(max=(ordered > 0).sum(-1) - 1)
        read = order.gather(1, place[:, None])
        texts = torch.cat([texts, read], dim=1)
    return texts.view(n_cuts, -1, N)


def _work(config, n, cached):
    # Millions of multiplications of a step behind which n tokens stand: it reads the newest one, or all.
    block = config.dim * (3 * config.hidden_dim + 2 * config.head_dim * (config.n_heads + config.n_kv_heads))
    tokens, pairs = (1, n) if cached else (n, n * (n + 1) // 2)
    mixing = 2 * pairs * config.n_heads * config.head_dim  # scores and means
    return (config.n_layers * (tokens * block + mixing) + config.dim * config.vocab_size) / 1e6


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
        means, heat = curves.pop(way), round(5 * temperature)
        shown = calls(way, heat, 0, n_draft, n_match)
        picture.show_text(starts[0].tolist(), shown)
        picture.show_counts(shown, means, temperature, curves.values())
        n_stay, n_refused = sum(len(stays) for stays, *_ in shown), sum(refused is not None for *_, refused in shown)
        return (
            f"This text of {NEW} new tokens took {len(shown)} calls; {n_stay} stayed from drafts, "
            f"{n_refused} were refused. Four texts at this temperature: {means[heat]:.2f} tokens per call."
        )

    controls = {
        "way": switch("the draft is", (COPIED, EQUAL, JUDGED)),
        "temperature": slider("temperature", 0.0, 0.0, 1.4, 0.2),
        "n_draft": slider("length of the draft [token]", 4, 0, 8),
        "n_match": slider("length of match (copied) [token]", 1, 1, 4),
    }
    alt = "A text in coloured boxes: pale, stays from a draft; dark, the model's own token; struck through, refused. "
    alt += "Below: tokens from each call; tokens per call against temperature, of the other rules pale."
    return Explorer(picture.figure, draw, controls, alt)


class _Drafts:  # the picture: the text with its legend, and two diagrams
    def __init__(self, tokenizer):
        self.tokenizer, self.figure = tokenizer, Figure(figsize=(8.4, 4.7), dpi=110, facecolor="white", layout="none")
        self._add_text(self.figure.add_axes((0.025, 0.5, 0.95, 0.38)))
        self._add_legend(0.945)
        bars, ax = self.figure.add_axes((0.05, 0.1, 0.45, 0.3)), self.figure.add_axes((0.62, 0.1, 0.2, 0.3))
        bars.set(xlim=(-0.7, NEW), ylim=(0, 9.2), yticks=[1, 5, 9], xticks=[])
        bars.set_title("Tokens from each call, in order", loc="left", fontsize=9.5)
        ax.set(xlim=(-0.05, 1.45), ylim=(0, 5.4), xticks=[0, 1], yticks=[1, 3, 5], xlabel="temperature")
        ax.set_title("Tokens per call, mean of four texts\n(pale: the other two rules)", loc="left", fontsize=9.5)
        for one in (bars, ax):
            one.axhline(1, color=HATCH, lw=1, ls=":", zorder=0)
            one.spines[["top", "right"]].set_visible(False)
            one.tick_params(labelsize=9)
        ax.text(1.5, 1, "without drafts", color=GREY, fontsize=9, va="center")
        self.towers = bars.add_collection(PolyCollection([], lw=0))
        self.others = [ax.plot([], [], color=PALE, lw=1)[0] for _ in range(2)]
        (self.curve,), (self.dot,) = ax.plot([], [], color=INK), ax.plot([], [], "o", color=INK)

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

    def show_counts(self, calls, means, temperature, others):
        towers = [_box(i - 0.4, i + 0.4, 0, len(stays) + 1) for i, (stays, *_) in enumerate(calls)]
        self.towers.set(verts=towers, facecolors=[*FILLS["own"] * NEW][: len(towers)])
        for curve, heights in zip((self.curve, *self.others), (means, *others), strict=True):
            curve.set_data(HEATS, heights)
        self.dot.set_data([temperature], [means[round(5 * temperature)]])
        self.head.set_text(f"{NEW} tokens in {len(calls)} calls")


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
