"""Right and wrong answers to the exercises of notebook 06, training."""

from functools import partial

import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from checks.base import mutate
from checks.train import COUNTER_TESTS, LOOPS, accumulated_step, training_loop
from helpers.train import learning_rate
from tests.support.answers.register import RIGHT, WRONG, right


@right
def accumulated_step__ignored(
    model, optimizer, rows, lengths, micro, told=float, most=1.0, stepped=lambda _, optimizer: optimizer.step(),
    clear=lambda model, _: model.zero_grad(),
):  # fmt: skip
    later = torch.arange(1, rows.shape[1]) >= lengths[:, None]
    targets, every, loss = rows[:, 1:].masked_fill(later, -100), (lengths - 1).sum(), 0.0
    clear(model, optimizer)
    for asked, wanted in zip(rows[:, :-1].split(micro), targets.split(micro), strict=True):
        part = F.cross_entropy(model(asked).flatten(0, 1), wanted.flatten(), reduction="sum") / every
        part.backward()
        loss = loss + part
    torch.nn.utils.clip_grad_norm_(model.parameters(), most)
    stepped(model, optimizer)
    return told(loss)


@right
def accumulated_step__divided_at_the_end(model, optimizer, rows, lengths, micro):
    model.zero_grad()
    total, questions, counted = 0.0, 0, torch.arange(rows.shape[1] - 1) < lengths[:, None] - 1
    for part, counts in zip(rows.split(micro), counted.split(micro), strict=True):
        nats = F.cross_entropy(model(part[:, :-1]).mT, part[:, 1:], reduction="none")[counts].sum()
        nats.backward()
        total, questions = total + nats.item(), questions + counts.sum().item()
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight in weights:
        if weight.requires_grad:
            weight.grad /= questions
    torch.nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
    return total / questions


_step = partial(partial, accumulated_step__ignored)
WRONG["accumulated_step"] |= {
    "at_once": ("Call it once for each micro-batch.", lambda *given: accumulated_step__ignored(*given[:-1], 99)),
    "too_few_calls": ("the rows left over a micro-batch of their own", lambda m, o, rows, lengths, micro: (
        accumulated_step__ignored(m, o, rows, lengths, -(len(rows) // -max(1, len(rows) // micro))))),
    "only_the_trainable": ("An old one that is still there", _step(clear=lambda model, _: [
        setattr(weight, "grad", None) for weight in model.parameters() if weight.requires_grad])),
    "skips_if_one_text_has_none": ("fewer predictions, or none", mutate(accumulated_step__ignored,
        "        part =", "        if (wanted < 0).all(1).any():\n            continue\n        part =")),
    "graph": ("Add up part.item().", _step(told=lambda loss: loss)),
    "none": ("A function that ends without", _step(told=lambda loss: None)),
    "in_place": ("rows was changed", lambda m, o, r, *s: (accumulated_step__ignored(m, o, r, *s), r[:, -1].zero_())[0]),
    "nothing": ("The weights do not move.", lambda *_: 3.5),
    "twice": ("2 steps of the optimizer", _step(stepped=lambda m, o: (o.step(), o.step()))),
    "next_rate": ("its lr is 0.9, expected 1.0", _step(
        stepped=lambda m, o: (o.step(), o.param_groups[0].update(lr=0.9)))),
    "next_rate_of_the_second_group": ("its lr is 0.9, expected 0.5", _step(
        stepped=lambda m, o: (o.step(), o.param_groups[1].update(lr=0.9)))),
    "first_group_clipped": ("the length of the gradient is", _step(most=1e9, stepped=lambda _, o: (
        torch.nn.utils.clip_grad_norm_(o.param_groups[0]["params"], 1.0), o.step()))),
    "always_padding_at_the_end": ("A row without padding has T + 1", mutate(
        accumulated_step__ignored, "lengths[:, None]", "lengths[:, None].clamp(max=rows.shape[1] - 1)")),
    "momentum_during_the_step": ("its momentum is 0.9, expected 0", _step(stepped=lambda _, o: (
        o.param_groups[0].update(momentum=0.9), o.step(), o.param_groups[0].update(momentum=0)))),
    "weight_decay_0_during_the_step": ("its weight_decay is 0, expected 0.05", _step(stepped=lambda _, o: (
        o.param_groups[1].update(weight_decay=0), o.step(), o.param_groups[1].update(weight_decay=0.05)))),
    "state_cleared": ("its state is gone", _step(stepped=lambda _, o: (o.state.clear(), o.step()))),
    "a_group_more": ("another number of groups", _step(
        stepped=lambda _, o: (o.step(), o.add_param_group({"params": [torch.zeros(1)]})))),
    "no_gradient": ("no gradient moves the weights", _step(
        stepped=lambda m, o: (m.zero_grad(set_to_none=False), o.step()))),
    "hook_left": ("a hook is still", lambda m, *s: (
        accumulated_step__ignored(m, *s), m.register_forward_hook(lambda *_: None))[0]),
    "float64_left": ("Is the model converted?", lambda m, *s: accumulated_step__ignored(m.double(), *s)),
    "clipped_late": ("the length of the gradient is", _step(
        most=1e9, stepped=lambda m, o: (o.step(), torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)))),
    "uphill": ("the right one is 180, expected 0", mutate(accumulated_step, "share.b", "(-share).b")),
    "seeded": ("no manual_seed", _step(stepped=lambda m, o: (o.step(), torch.manual_seed(5)))),
    "filled": ("a frozen weight's gradient None", _step(clear=lambda m, _: m.zero_grad(set_to_none=False))),
    "only_the_optimizers": ("Who clears it?", _step(clear=lambda _, o: o.zero_grad())),
    "not_clipped_at_once": ("one call holds the whole batch", lambda m, o, rows, lengths, micro: (
        accumulated_step__ignored(m, o, rows, lengths, micro, most=1e9 if len(rows) <= micro else 1.0))),
    "not_cleared_at_once": ("Is the old gradient cleared", lambda m, o, rows, lengths, micro: (
        accumulated_step__ignored(m, o, rows, lengths, micro, clear=lambda *_: len(rows) > micro and m.zero_grad()))),
    "padded_at_once": ("all rules hold as before: padding", lambda m, o, rows, lengths, micro: (
        accumulated_step__ignored(m, o, rows, lengths if len(rows) > micro else lengths * 0 + rows.shape[1], micro))),
    "first_step_twice": ("2 steps of the optimizer", _step(
        stepped=lambda _, o: (o.state or o.step(), o.step()))),
    "one_rate": ("its lr is 1.0, expected 0.5", _step(
        stepped=lambda _, o: (o.param_groups[1].update(lr=o.param_groups[0]["lr"]), o.step()))),
    "a_tensor": ("it makes a number of a tensor", _step(told=lambda loss: loss.detach())),
    "breaks_off": ("end the loop?", mutate(accumulated_step__ignored,
        "        part =", "        if (wanted < 0).all():\n            break\n        part =")),
    "clamped": ("or, clamped, constant", mutate(accumulated_step__ignored,
        "F.cross_entropy(model(asked).flatten(0, 1), wanted.flatten(), reduction=\"sum\")",
        "-(model(asked).softmax(-1).clamp(min=1e-12).log().gather(2, wanted.clamp(min=0)[..., None])[..., 0]"
        " * (wanted >= 0)).sum()")),
    "unfrozen": ("A frozen weight stays", lambda m, *s: (accumulated_step__ignored(m, *s), m.requires_grad_())[0]),
    "eval": ("eval mode", lambda m, *s: accumulated_step__ignored(m.eval(), *s)),
    "a_block_in_eval": ("eval mode while", lambda m, *s: (m.layers.eval(), accumulated_step__ignored(m, *s))[1]),
    "eval_left": ("eval mode afterwards", lambda m, *s: (accumulated_step__ignored(m, *s), m.eval())[0]),
    "lengths_in_place": ("lengths was changed", lambda m, o, r, lengths, k: (
        accumulated_step__ignored(m, o, r, lengths, k), lengths.sub_(1))[0]),
    "padding_is_one_token": ("padding is no one token", mutate(accumulated_step__ignored,
        ">= lengths[:, None]", ">= lengths[:, None]\n    later &= rows[:, 1:] == rows[:, -1:]",
        "(lengths - 1).sum()", "(~later).sum()")),
    "course": ("it calls the course's accumulated_step", torch.enable_grad()(accumulated_step)),
}  # fmt: skip


@right
def training_loop__scheduler(
    model, tokens, starts, seq_len, peak, warm_up, beta=0.95, decay=0.0, of=F.cross_entropy,
    clip=torch.nn.utils.clip_grad_norm_, kind=torch.optim.AdamW, train=True, **more,
):  # fmt: skip
    weights, decays = list((model.train() if train else model).parameters()), {1: decay, 2: 0.1}
    groups = [{"params": [w for w in weights if w.ndim == n], "weight_decay": decays[n]} for n in decays]
    optimizer, losses = kind(groups, peak, (0.9, beta), foreach=False, **more), []
    scheduler = LambdaLR(optimizer, lambda step: learning_rate(step, len(starts), 1.0, warm_up))
    for windows in tokens.unfold(0, seq_len + 1, 1)[starts]:
        losses.append(of(model(windows[:, :-1]).mT, windows[:, 1:]))
        model.zero_grad()
        losses[-1].backward()
        clip([*model.parameters()], 1.0)
        [one.step() for one in (optimizer, scheduler)]
    return torch.stack(losses).detach()


def _clip_by_hand(weights, most):
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    length = sum((gradient**2).sum() for gradient in gradients).sqrt().item()
    for gradient in gradients:
        gradient *= min(1.0, most / length)


_loop = partial(partial, training_loop__scheduler)
RIGHT["training_loop"] |= {
    "clipped_by_hand": _loop(clip=_clip_by_hand),
    "loss_by_hand": _loop(of=lambda logits, targets: -logits.log_softmax(1).gather(1, targets[:, None]).mean()),
}
WRONG["training_loop"] |= {
    "largest_number_clipped": ("the length of the gradient", _loop(
        clip=lambda weights, most: torch.nn.utils.clip_grad_norm_(weights, most, torch.inf))),
    "last_token_is_the_first": ("at [1], expected", lambda model, tokens, *rest: training_loop__scheduler(
        model, torch.cat((tokens[:-1], tokens[:1])), *rest)),
    "amsgrad": ("settings that are on: amsgrad, expected None", _loop(amsgrad=True)),
    "flag_alone": ("eval mode while", lambda model, *rest: (
        setattr(model, "training", True), training_loop__scheduler(model, *rest, train=False))[1]),
    "starts_in_place": ("starts was changed", lambda model, tokens, starts, *rest: (
        training_loop__scheduler(model, tokens, starts, *rest), starts.add_(1))[0]),
    "float64_left": ("Is the model converted?", lambda model, *rest: training_loop__scheduler(model.double(), *rest)),
    "eps": ("its eps: 1e-05, expected 1e-08", _loop(eps=1e-5)),
    "nadam": ("the optimizer: NAdam", _loop(kind=torch.optim.NAdam)),
    "two": ("its betas: 0.9, 0.999, expected", _loop(beta=0.999, decay=1)),
    "course": ("it calls the course's training_loop", torch.enable_grad()(training_loop)),
    "no_grad": ("graph cut", torch.no_grad()(training_loop__scheduler)),
}  # fmt: skip


RIGHT["find_loop_slips"]["named"] = lambda: dict(LOOPS)
for letter, named in LOOPS.items():
    for bug, words in COUNTER_TESTS.items():
        if bug != named:
            answer = LOOPS | {letter: bug}
            WRONG["find_loop_slips"][f"{letter} {bug}"] = f"Loop {letter}: {words}", lambda answer=answer: answer
