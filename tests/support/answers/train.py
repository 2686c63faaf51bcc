"""Right and wrong answers to the exercises of notebook 06, training."""

from collections import Counter
from functools import partial
from itertools import pairwise

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from checks.base import edited
from checks.train import COUNTER_TESTS, LOOPS, accumulated_step, training_loop
from helpers.train import learning_rate
from tests.support.answers.register import right, wrong


@right
def bpe_step__letters(ids, new_id):
    pair = Counter(pairwise(ids)).most_common(1)[0][0]
    text = "".join(map(chr, ids)).replace("".join(map(chr, pair)), chr(new_id))
    return [ord(letter) for letter in text], list(pair)


wrong("two things", "bpe_step__ids_only")(lambda ids, new_id: bpe_step__letters(ids, new_id)[0])
wrong("It is two int", "bpe_step__pair_and_count")(lambda ids, new_id: (ids, Counter(pairwise(ids)).most_common(1)[0]))


@right
def accumulated_step__ignored(
    model, optimizer, rows, lengths, micro, told=float, most=1.0, stepped=lambda _, optimizer: optimizer.step()
):
    later = torch.arange(1, rows.shape[1]) >= lengths[:, None]
    targets, every, loss = rows[:, 1:].masked_fill(later, -100), (lengths - 1).sum(), 0.0
    optimizer.zero_grad(set_to_none=False)
    for asked, wanted in zip(rows[:, :-1].split(micro), targets.split(micro), strict=True):
        part = F.cross_entropy(model(asked).flatten(0, 1), wanted.flatten(), reduction="sum") / every
        part.backward()
        loss = loss + part
    torch.nn.utils.clip_grad_norm_(model.parameters(), most)
    stepped(model, optimizer)
    return told(loss)


_step = partial(partial, accumulated_step__ignored)
for expected, name, wrong_step in (
    ("Call it once for each part.", "at_once", lambda *all_but, **_: accumulated_step__ignored(*all_but[:-1], 99)),
    ("Add up part.item().", "graph", _step(told=lambda loss: loss)),
    ("A function that ends without", "none", _step(told=lambda loss: None)),
    ("rows was changed", "in_place", lambda m, o, r, *s: (accumulated_step__ignored(m, o, r, *s), r[:, -1].zero_())[0]),
    ("The weights do not move.", "nothing", lambda *_: 3.5),
    ("Yours are 2 steps.", "twice", _step(stepped=lambda m, o: (o.step(), o.step()))),
    ("Yours are 0 steps.", "by_hand", _step(stepped=lambda m, o: [w.data.sub_(w.grad) for w in m.parameters()])),
    ("settings as they are", "rate", _step(stepped=lambda m, o: (o.param_groups[0].update(lr=0.9), o.step()))),
    ("between backward() and step()", "clipped_late", _step(
        most=1e9, stepped=lambda m, o: (o.step(), torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)))),
    ("the right one is 180, expected 0", "uphill", edited(accumulated_step, "share.b", "(-share).b")),
    ("no manual_seed", "seeded", _step(stepped=lambda m, o: (o.step(), torch.manual_seed(5)))),
    ("eval mode", "eval", lambda m, *s: accumulated_step__ignored(m.eval(), *s)),
    ("it calls the course's accumulated_step", "course", torch.enable_grad()(accumulated_step)),
):  # fmt: skip
    wrong(expected, f"accumulated_step__{name}")(wrong_step)


@right
def training_loop__scheduler(model, tokens, starts, seq_len, peak, warm_up, beta=0.95, decay=0.0):
    weights, decays = list(model.train().parameters()), {1: decay, 2: 0.1}
    groups = [{"params": [w for w in weights if w.ndim == n], "weight_decay": decays[n]} for n in decays]
    optimizer, losses = torch.optim.AdamW(groups, peak, (0.9, beta), foreach=False), []
    scheduler = LambdaLR(optimizer, lambda step: learning_rate(step, len(starts), 1.0, warm_up))
    for windows in tokens.unfold(0, seq_len + 1, 1)[starts]:
        losses.append(F.cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:]))
        model.zero_grad(set_to_none=False)
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        [one.step() for one in (optimizer, scheduler)]
    return torch.stack(losses).detach()


wrong("s = 0, its betas: 0.9, 0.999, expected", "training_loop__two")(
    partial(training_loop__scheduler, beta=0.999, decay=1)
)
wrong("it calls the course's training_loop", "training_loop__course")(torch.enable_grad()(training_loop))
wrong("graph cut", "training_loop__no_grad")(torch.no_grad()(training_loop__scheduler))


@right
def find_loop_slips__named():
    return dict(LOOPS)


for letter, named in LOOPS.items():
    for slip, words in COUNTER_TESTS.items():
        if slip != named:
            answer = LOOPS | {letter: slip}
            wrong(f"Loop {letter}: {words}", f"find_loop_slips__{letter} {slip}")(lambda answer=answer: answer)
