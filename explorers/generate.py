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
    start, seen, slots = encode(tokenizer, PROMPT), causal_visible(N, N), torch.arange(N)
    n_prompt, numbers = len(start), torch.rand(N, generator=torch.Generator().manual_seed(0))
    texts = _all_texts(model, start, numbers)
    tips = torch.view_as_real(torch.polar(torch.ones(N), rope_angles(slots, model.inv_freq)[:, PAIR]))
    works = {way: [_work(model.config, n, way == WAYS[0] and n > n_prompt) for n in range(n_prompt, N)] for way in WAYS}

    # What is fixed: panels, the circle, both curves of work in grey.
    figure = Figure(figsize=(8.4, 5.2), dpi=110, facecolor="white", layout="none")
    axes = {name: figure.add_axes(place[:4]) for name, place in PANELS.items()}
    page, bars, line, clock, work, mask, kept = axes.values()
    for (name, ax), (*_, x, y, title) in zip(axes.items(), PANELS.values(), strict=True):
        bare(ax, x, y, "equal" if name == "clock" else "auto")
        above = {"transform": ax.transAxes, "fontsize": 9.5, "va": "bottom"}
        ax.text(0, 1.5 if name == "line" else 1.03, title, **above)
        ax.patch.set_visible(False)
    for y in (0, 0.5, 1):
        bars.plot([-0.6, BARS - 0.4], [y, y], color=HIDDEN, lw=0.8, zorder=0)
        bars.text(-0.7, y, y, ha="right", va="center", fontsize=9)
    for way, curve in works.items():
        work.plot(range(n_prompt, N), curve, color=HIDDEN)
        work.text(N, curve[-1], f" {way.split()[2]}", fontsize=8.5, color=GREY, va="center")
    work.plot([n_prompt, n_prompt, N], [42, 0, 0], color=INK, lw=0.8)
    for x, y, words in ((n_prompt, -7, n_prompt), (N, -7, N), (19, -7, "tokens so far"), (4.5, 0, 0), (4, 40, 40)):
        work.text(x, y, words, ha="center", va="center", fontsize=8.5)
    clock.plot(*arc(0, 6.3, 1), color=HIDDEN, lw=1)
    for y, name, color in ((-0.4, "the query", QUERY), (-0.65, "keys", KEY)):
        clock.text(0, y, name, color=color, fontsize=9, ha="center", va="center")
    hide_future(mask, N, zorder=2)
    mask.plot([n_prompt - 0.5, N - 0.5], [n_prompt - 0.5] * 2, color=INK, lw=1, ls=":", zorder=3)
    mask.text(N - 1, n_prompt - 1, "prompt", ha="right", fontsize=9, bbox={"fc": HIDDEN, "lw": 0, "pad": 1}, zorder=3)
    mask.text(-1, N / 2, "query", rotation=90, ha="right", va="center", fontsize=9)
    mask.text(N / 2, N + 0.2, "key", ha="center", va="center", fontsize=9)

    # What moves: the text, bars with their names, the line and its number, rows of weights, slots, hands, the work.
    boxes, frame = page.add_collection(PolyCollection([], lw=0.6)), page.add_collection(PolyCollection([], fc="none"))
    style = {"family": "monospace", "fontsize": 9, "va": "center", "ha": "center", "parse_math": False, "zorder": 4}
    words = [page.text(0, 0, "", **style) for _ in range(N)]
    filled = bars.bar(range(BARS), [0] * BARS, width=0.8, color=PALE)
    slanted = {"rotation": 40, "rotation_mode": "anchor", "fontsize": 9, "parse_math": False, "zorder": 4}
    names = [bars.text(x - 0.1, 0, "", **slanted) for x in range(BARS)]
    pieces = line.add_collection(PolyCollection([]))
    (number,) = line.plot([], [], "v", color=INK, ms=8, clip_on=False)
    past, now = (mask.imshow(torch.zeros(N, N).numpy(), cmap="Blues", vmin=-low, vmax=high, aspect="auto")
                 for low, high in ((0.2, 1.6), (0.12, 0.3)))  # fmt: skip
    room = kept.add_collection(PolyCollection([_box(i - 0.5, i + 0.4) for i in slots]))
    hands, (query,) = clock.add_collection(LineCollection([], lw=1.2)), clock.plot([], [], color=QUERY, lw=3)
    (curve,), (dot,) = work.plot([], [], color=INK), work.plot([], [], "o", color=INK)
    leaves = {name: [one for one in ax.findobj(lambda one: not one.get_children()) if one.get_visible()]
              for name, ax in axes.items() if name != "page"}  # fmt: skip

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
        token = text[at].item()
        for name, parts in leaves.items():
            for part in parts:
                if part.get_visible() != (on := (name in IN_DRAW) == (show == DRAW)):
                    part.set_visible(on)
        corners, colors, x, y = [], [], 0, 0
        for i, label in enumerate(words):
            word = tokenizer.decode([text[i].item()]).replace("\n", "↵") if i <= at else ""
            x, y = (0, y + 1) if x + len(word) > COLUMNS else (x, y)
            corners += [_box(x, x + len(word), y + 0.1, y + 0.9)] if word else []
            sure = own[i - n_prompt] if i >= n_prompt else 0
            colors.append(str(1 - 0.75 * sure) if i >= n_prompt else "#EAF2FA")
            label.set(position=(x + len(word) / 2, y + 0.5), text=word, color="white" if sure > 0.6 else INK)
            x += len(word)
        boxes.set(verts=corners, facecolors=colors[: at + 1], edgecolors=HATCH)
        frame.set(verts=corners[-1:], edgecolors=KEY, linewidths=2)
        if show == DRAW:
            return draw_draw(at, token, shares[new - 1])
        return draw_step(at, new, weights, show)

    def draw_draw(at, token, shares):
        best, order = shares.sort(descending=True, stable=True)
        for bar, name, share, one in zip(filled, names, best.tolist(), order.tolist(), strict=False):
            bar.set(height=share, color=KEY if one == token else PALE)
            name.set(text=readable(tokenizer, one) if share else "", y=min(share, 0.75) + 0.04)
        ends, place = [0, *best.cumsum(0).tolist()], (order == token).nonzero().item()
        shown = [*pairwise([*ends[:200], 1]), ends[place : place + 2]]  # one grey piece for the many last ones
        pieces.set(verts=[_box(*piece) for piece in shown], facecolors=[*(PALE, GREY) * 100, KEY], edgecolors="none")
        number.set_data([numbers[at]], [1.15])
        may, name = int((shares > 0).sum()), readable(tokenizer, token)
        page.set_title(f"“{name}” is one of {may} token{'s' * (may > 1)} that can come here", fontsize=9.5, loc="left")
        return f"“{name}” is drawn with probability {shares[token]:.2g}; {may} of 1,024 tokens can be drawn."

    def draw_step(at, new, weights, way):
        cached = way == WAYS[0]
        computed = (slots < at if not cached or new == 1 else slots == at - 1)[:, None]
        now.set_data(weights.masked_fill(~(computed & seen), float("nan")).numpy())
        past.set_data(weights.masked_fill(~seen | computed | (slots >= at)[:, None], float("nan")).numpy())
        fresh = [not cached or new == 1 or i == at - 1 for i in range(at)]
        colors = [KEY if one else "#F3C9AE" for one in fresh]  # pale: from earlier steps
        room.set(facecolors=[*colors[: at * cached], *["white"] * N][:N], edgecolors=HATCH, linewidths=0.5)
        hands.set(segments=[[(0, 0), tip] for tip in tips[:at].tolist()], colors=colors)
        query.set_data([0, 0.75 * tips[at - 1, 0]], [0, 0.75 * tips[at - 1, 1]])
        curve.set_data(range(n_prompt, N), works[way])
        dot.set_data([at], [works[way][new - 1]])
        count, all_of = int((computed & seen).sum()), at * (at + 1) // 2
        words = f"This step computes {count} of the triangle's {all_of} attention weights"
        page.set_title(words, fontsize=9.5, loc="left")
        return (
            f"{way.capitalize()}: it turns {sum(fresh)} of {at} keys, computes {count} attention weights in each head, "
            f"and multiplies {works[way][new - 1]:.1f} million times."
        )

    controls = {
        "new": slider("new token", 20, 1, N - n_prompt),
        "temperature": slider("temperature", 0.8, 0.0, 2.0, 0.1),
        "top_p": slider("top-p", 0.9, 0.1, 1.0, 0.1),
        "show": switch("show", SHOWN),
    }
    alt = (
        "A text that is written. Below, the draw: probabilities, and a number on a line. Or the step: attention row by "
    )
    return Explorer(figure, draw, controls, alt + "row, slots of the cache, a hand for each key, the work.")


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
INKS, TINTS, REFUSED = ("#4B3F8F", "#8F6A1F"), ("#DEDAF3", "#F5E8C8"), "#B00020"  # of calls, in turns


def explore_drafts() -> Explorer:
    """A text, one colour for each call of the model: what stays of its draft, its own token, the refused one."""
    model, small, tokenizer = bundled(), bundled(), load_tokenizer()
    for matrix in small.parameters():
        if matrix.ndim == 2:
            matrix.copy_(_rounded(matrix))
    tokens = encode(tokenizer, train_val_split(load_text(None))[1])
    starts = tokens[2500 * torch.arange(N_TEXTS)[:, None] + torch.arange(16)]
    n_prompt = starts.shape[1]
    texts = {judged: _with_drafts(model, small, starts, judged) for judged in (False, True)}

    @functools.cache
    def calls(way, heat, row, n_draft, n_match):
        text, guesses, kept = (one[heat][row] for one in texts[way == JUDGED])
        return _calls(text, n_prompt, n_draft, n_match, *(() if way == COPIED else (guesses, kept)))

    figure = Figure(figsize=(8.4, 4.7), dpi=110, facecolor="white", layout="none")
    page, bars, ax = (figure.add_axes(box) for box in ((0.025, 0.5, 0.95, 0.38), (0.05, 0.1, 0.45, 0.3),
                                                       (0.62, 0.1, 0.2, 0.3)))  # fmt: skip
    style = {"family": "monospace", "fontsize": 11, "va": "center", "parse_math": False, "zorder": 4}
    ruler = page.text(0, 0, 50 * "m", **style)  # letters are whole pixels wide
    columns = 50 * page.bbox.width / ruler.get_window_extent(FigureCanvasAgg(figure).get_renderer()).width
    ruler.remove()
    bare(page, (0, columns), (LINES, 0), "auto")
    bars.set(xlim=(-0.7, NEW), ylim=(0, 9.2), yticks=[1, 5, 9], xticks=[])
    bars.set_title("Tokens from each call, in order", loc="left", fontsize=9.5)
    ax.set(xlim=(-0.05, 1.45), ylim=(0, 5.4), xticks=[0, 1], yticks=[1, 3, 5], xlabel="temperature")
    ax.set_title("Tokens per call, mean of four texts", loc="left", fontsize=9.5)
    for one in (bars, ax):
        one.axhline(1, color=HATCH, lw=1, ls=":", zorder=0)
        one.spines[["top", "right"]].set_visible(False)
        one.tick_params(labelsize=9)
    ax.text(1.5, 1, "without drafts", color=GREY, fontsize=9, va="center")
    looks = {"stays": {"color": INK}, "chosen": {"color": "white", "weight": "bold"}, "refused": {"color": REFUSED}}
    for x, words, kind, fill in ((0.03, "stays from the draft", "stays", TINTS[0]),
                                 (0.23, "the model's own", "chosen", INKS[0]),
                                 (0.4, "refused", "refused", "#F4F4F4")):  # fmt: skip
        figure.text(x, 0.945, words, fontsize=9.5, va="center", bbox={"fc": fill, "lw": 0, "pad": 2}, **looks[kind])
    figure.add_artist(Line2D([0.398, 0.462], [0.945] * 2, color=REFUSED, lw=1, zorder=9))
    head = figure.text(0.975, 0.945, "", fontsize=9.5, ha="right", va="center")
    looks["given"] = {"color": GREY}
    labels = [{kind: page.text(0, y + 0.5, "", **style, **look) for kind, look in looks.items()} for y in range(LINES)]
    boxes = page.add_collection(PolyCollection([], lw=0))
    struck = page.add_collection(LineCollection([], colors=REFUSED, lw=1, zorder=5))
    towers = bars.add_collection(PolyCollection([], lw=0))
    (curve,), (dot,) = ax.plot([], [], color=INK), ax.plot([], [], "o", color=INK)

    def draw(way, temperature, n_draft, n_match):
        heat = round(5 * temperature)
        mine = calls(way, heat, 0, n_draft, n_match)
        pieces = [(token, "given", 0) for token in starts[0].tolist()]
        for i, (stays, chosen, refused) in enumerate(mine):
            pieces += [(token, "stays", i) for token in stays]
            pieces += [(refused, "refused", i)] * (refused is not None) + [(chosen, "chosen", i)]
        rows, x, y = [dict.fromkeys(looks, "") for _ in range(LINES)], 0, 0
        verts, colors, lines = [], [], []
        for token, kind, i in pieces:
            word = tokenizer.decode([token]).replace("\n", "↵").replace("    ", " ")
            x, y = (0, y + 1) if x + len(word) > columns else (x, y)
            if y == LINES:
                break
            rows[y][kind] = rows[y][kind].ljust(x) + word
            if kind != "given":
                verts.append(_box(x, x + len(word), y + 0.1, y + 0.9))
                colors.append({"stays": TINTS[i % 2], "refused": "#F4F4F4", "chosen": INKS[i % 2]}[kind])
            if kind == "refused":
                lines.append([(x, y + 0.5), (x + len(word), y + 0.5)])
            x += len(word)
        for label, row in zip(labels, rows, strict=True):
            for kind, one in label.items():
                one.set(
                    text=(said := row[kind].lstrip()), x=len(row[kind]) - len(said)
                )  # without blanks, which take time
        boxes.set(verts=verts, facecolors=colors)
        struck.set(segments=lines)
        sizes = [len(stays) + 1 for stays, *_ in mine]
        towers.set(
            verts=[_box(i - 0.4, i + 0.4, 0, n) for i, n in enumerate(sizes)], facecolors=[*INKS * NEW][: len(sizes)]
        )
        means = [N_TEXTS * NEW / sum(len(calls(way, one, row, n_draft, n_match)) for row in range(N_TEXTS))
                 for one in range(len(HEATS))]  # fmt: skip
        curve.set_data(HEATS, means)
        dot.set_data([temperature], [means[heat]])
        head.set_text(f"{NEW} tokens in {len(mine)} calls")
        n_refused = sum(refused is not None for *_, refused in mine)
        return (
            f"This text of {NEW} new tokens took {len(mine)} calls; {sum(sizes) - len(sizes)} stayed from drafts, "
            f"{n_refused} were refused. Four texts at this temperature: {means[heat]:.2f} tokens per call."
        )

    controls = {
        "way": switch("the draft is", (COPIED, EQUAL, JUDGED)),
        "temperature": slider("temperature", 0.0, 0.0, 1.4, 0.2),
        "n_draft": slider("length of the draft [token]", 4, 0, 8),
        "n_match": slider("length of match (copied) [token]", 1, 1, 4),
    }
    alt = "A text in coloured boxes: pale, stays from a draft; dark, the model's own token; struck through, refused. "
    return Explorer(figure, draw, controls, alt + "Below: tokens from each call; tokens per call against temperature.")


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
            draft, right = guesses[at - n_prompt :][:n_draft], kept[at - n_prompt :][:n_draft]
        else:
            ends = [i for i in range(n_match, at) if text[i - n_match : i] == text[at - n_match : at]]
            draft = text[ends[-1] : at][:n_draft] if ends else []
            right = [one == other for one, other in zip(draft, text[at:], strict=False)]
        most = len(text) - at - 1  # the last token is the model's own
        n = min((*right, False).index(False), most)
        calls.append(
            (text[at : at + n], text[at + n], draft[n] if n < min(len(right), most + 1) and not right[n] else None)
        )
        at += n + 1
    return calls


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
