"""The exercises of notebook 06, training: specification, cases, known mistakes with hints, check."""

from functools import partial
from types import MethodType

import torch
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim.optimizer import register_optimizer_step_pre_hook

from checks.base import TYPE_HINTS, Case, Exercise, Harness, Wrong, draw, mutate
from checks.explain import in_numbers, number
from checks.judge import check_of
from checks.shared import HOOK_LEFT, Named, RecordedLlama, snapshot
from helpers.model import Llama, LlamaConfig
from helpers.train import learning_rate


def training_loop(model, tokens, starts, seq_len, peak, warm_up):
    """Train the model in place, one step per row of starts (steps, B); the loss of each step [nat/token], a list."""
    model.train()
    matrices = [weight for weight in model.parameters() if weight.ndim == 2]
    gains = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    optimizer, steps, losses = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95)), len(starts), []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak, warm_up)
        at = starts[step][:, None] + torch.arange(seq_len)
        inputs, targets = tokens[at], tokens[at + 1]
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


_loop = partial(mutate, training_loop)


def small_model(number):
    """A new small LLaMA with its own fixed weights; its embeddings are tied if the number is even."""
    sizes = {"vocab_size": 24, "dim": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "hidden_dim": 24}
    constants = {"max_seq_len": 16, "norm_eps": 1e-5, "rope_theta": 100.0, "tie_embeddings": number % 2 == 0}
    model = RecordedLlama(LlamaConfig(**sizes, **constants))
    with torch.no_grad():
        for place, weight in enumerate(model.parameters()):
            weight.copy_(draw(*weight.shape, seed=100 * number + place, scale=0.2, shift=2.0 - weight.ndim))
            weight.mul_(GAINS.get(number, 1.0) if weight.ndim == 1 else 1.0)
            weight.grad = torch.full_like(weight, 0.1) if number in (WITH_GRADIENTS, IN_EVAL, FROZEN) else None
            weight.requires_grad_(number not in (IN_EVAL, FROZEN) or place != 2)  # one matrix is frozen
    return model.train(number != IN_EVAL)


def _number(number):
    return Named(number, f"checks.train.small_model({number})")


IN_EVAL, WITH_GRADIENTS, FROZEN = 4, 2, 6  # they bring old gradients; the first, in eval mode, has a frozen matrix, too
SHORT, SURE = 5, 7
GAINS = {SHORT: 0.1, FROZEN: 0.1, SURE: 50.0}  # times the usual ones: a short gradient, or logits far apart
EVAL_MODE = "Is the model in train mode? One that was loaded or judged is in eval mode, in which dropout is off."


def _trained(function, model, *inputs):
    """The answer of a training; raises if it drew random numbers, asked the model in eval mode, or leaves a trace."""
    frozen, state = [weight.requires_grad for weight in model.parameters()], torch.get_rng_state()
    answer = function(model, *inputs)
    if others := {weight.dtype for weight in model.parameters()} - {torch.float32}:
        raise Wrong(f"the weights are {others.pop()} afterwards, expected torch.float32.", "Is the model converted?")
    if any(one._backward_hooks for one in model.parameters()) or sum(snapshot(model)[0]):
        raise Wrong(*HOOK_LEFT)
    if [weight.requires_grad for weight in model.parameters()] != frozen:
        raise Wrong("other weights are tied or frozen afterwards.", "A frozen weight stays frozen, a tied one tied.")
    if not torch.equal(state, torch.get_rng_state()):
        raise Wrong("torch's random numbers go on from another state.", "Nothing is drawn here: no manual_seed either.")
    if not all(call.training for call in model.calls):
        raise Wrong("the model is in eval mode while it is trained.", EVAL_MODE)
    return answer


def _losses_and_state(function, number, tokens, starts, *rest):
    model, at = small_model(number), starts[0][:, None] + torch.arange(5)
    losses = _as_losses(_trained(function, model, tokens, starts, *rest))
    with torch.no_grad():
        left = F.cross_entropy(model(tokens[at]).mT, tokens[at + 1])
    return losses, left


def _as_losses(answer):
    if not isinstance(answer, list | tuple) and getattr(answer, "ndim", 0) != 1:
        hint = TYPE_HINTS.get(type(answer).__name__, "Append each step's loss to a list, and return the list.")
        raise Wrong(f"a list with a number for each step is expected, not a {type(answer).__name__}.", hint)
    return torch.tensor([_as_number(loss, "Append loss.item().") for loss in answer])


def _as_number(loss, hint):
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        raise Wrong("a loss keeps the graph of its step, and with it its memory.", hint)
    if not isinstance(loss, int | float) and getattr(loss, "shape", None) != ():
        raise Wrong(f"a number is expected as a loss, not {str(loss)[:60]}.", TYPE_HINTS.get(type(loss).__name__, hint))
    return float(loss)


class _Watch:
    """Notes what each step of the optimizer goes by, to name the first that diverges from the right one."""

    def __enter__(self):
        self.steps = []
        self.hook = register_optimizer_step_pre_hook(lambda optimizer, *_: self.steps.append(_facts(optimizer)))

    def __exit__(self, *_):
        self.hook.remove()

    def explain(self, case, _answer, problem, _right):
        """(0, what is wrong in words, hint); with the first step that diverges if no mistake is known."""
        message = problem.message
        if problem.look_up:
            with (right := _Watch()):
                TRAINING_LOOP.harness.run(training_loop, *case.fresh_inputs())
            steps = enumerate(zip(self.steps, right.steps, strict=True) if len(self.steps) == len(right.steps) else ())
            off = [(s, what, mine, want) for s, (mine, want) in steps for what in want if mine[what] != want[what]]
            for s, what, mine, want in off[:1]:
                message += f" In step s = {s}, {what}: {mine[what] or None}, expected {want[what] or None}."
        shows = not problem.hint and problem.pair != ()
        return 0, message + (in_numbers(TRAINING_LOOP, case, problem) if shows else ""), problem.hint


def _facts(optimizer):
    """What a step of the optimizer goes by, in words."""
    held = [(weight, group) for group in optimizer.param_groups for weight in group["params"]]
    is_adamw = isinstance(optimizer, torch.optim.AdamW) or optimizer.defaults.get("decoupled_weight_decay")
    gradients = [weight.grad for weight, _ in held if weight.grad is not None]
    found = {
        "the optimizer": ["AdamW" if is_adamw else type(optimizer).__name__],
        "how many numbers the optimizer moves": [sum(gradient.numel() for gradient in gradients)],
        "the learning rate": [float(group["lr"]) for _, group in held],
        "its betas": [", ".join(map(number, group.get("betas", ()))) for _, group in held],
        "its eps": [group.get("eps", 0.0) for _, group in held],
        "settings that are on": [name for name in ("amsgrad", "maximize") if any(one.get(name) for _, one in held)],
        "the weight decay of the matrices": [group.get("weight_decay", 0.0) for w, group in held if w.ndim == 2],
        "the weight decay of the gains": [group.get("weight_decay", 0.0) for w, group in held if w.ndim == 1],
        "the length of the gradient": [torch.nn.utils.get_total_norm(gradients).item()],
    }
    said = lambda one: one if isinstance(one, str) else number(one)  # noqa: E731
    return {what: ", ".join(sorted({*map(said, ones)})) for what, ones in found.items()}


_TEXT = draw(400, seed=1).mul(7).long().abs().clamp(max=23)  # small ids are frequent
_FIRST = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 2])  # its last is another than its first
_STARTS = draw(12, 3).mul(1e4).long().abs() % (len(_TEXT) - 9)
STILL_THERE = "Is the gradient of the step before still there? backward() adds to it: zero_grad() in each step."
UNMOVED = "The weights do not move. Does step() follow backward(), with no zero_grad() between, on this model's?"
FROZEN_DECAYS = "Is a frozen weight's gradient None? An old one that is still there, and even one of 0, lets it move."
OLD_COUNT = "Clipping counts the old gradient of a weight that the optimizer does not hold. Who clears it?"
ASKED = "model(inputs).flatten(0, 1), targets"
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
TRAINING_LOOP = Exercise(training_loop, [
    Case("3 steps, one window of 4 tokens each", (_number(1), _FIRST, torch.tensor([[2], [11], [0]]), 4, 0.05, 2)),
    Case("12 steps, three windows, tied, old gradients", (_number(2), _TEXT, _STARTS, 6, 0.1, 4)),
    Case("eval mode, one frozen, old gradients", (_number(IN_EVAL), _FIRST, torch.tensor([[1], [5], [6]]), 5, 0.05, 1)),
], [  # known mistakes
    (STILL_THERE, _loop("optimizer.zero_grad()", "")),
    (STILL_THERE, _loop("optimizer.zero_grad()", "losses or optimizer.zero_grad()")),  # once, before the loop
    ("The model may come with old gradients: is zero_grad() called before backward(), in the first step, too?",
     _loop("optimizer.zero_grad()", "", "optimizer.step()", "optimizer.step(), optimizer.zero_grad()")),
    (FROZEN_DECAYS, _loop("optimizer.zero_grad()", "model.zero_grad(set_to_none=False)")),
    (OLD_COUNT, _loop("ndim == 2]", "ndim == 2 and weight.requires_grad]")),
    (UNMOVED, _loop("loss.backward()", "loss.backward(), model.zero_grad()")),
    ("Are the targets the inputs? Then each prediction holds its own answer.", _loop("at + 1", "at")),
    ("Is a window's last target the token behind it?", _loop("tokens[at + 1]", "tokens[at].roll(-1, 1)")),
    ("Are the targets shifted twice?", _loop(ASKED, "model(inputs)[:, :-1].flatten(0, 1), targets[:, 1:]")),
    ("Is the softmax taken once? cross_entropy does it.", _loop("model(inputs)", "model(inputs).softmax(-1)")),
    ("The step gets a gradient longer than 1.0. Clip it between backward() and step().", _loop(CLIP, "")),
    ("Is the optimizer made once, before the loop?", _loop("at = ", "optimizer.state.clear()\n        at = ")),
], harness=Harness(_losses_and_state, ("the list of losses", "the loss that the model has afterwards"),
                    stages=_Watch, max_failures=2),
    allow=("learning_rate",))  # fmt: skip
check_training_loop = check_of(TRAINING_LOOP)


def accumulated_step(model, optimizer, rows, lengths, micro):
    """One step on padded rows (B, T + 1), row i of lengths[i] tokens, micro rows per call; the loss [nat/token]."""
    parts = list(zip(rows.split(micro), lengths.split(micro), strict=True))
    questions, loss = (lengths - 1).sum(), 0.0
    model.zero_grad()
    for part, length in parts:
        asked = torch.arange(rows.shape[1] - 1) < length[:, None] - 1
        nats = F.cross_entropy(model(part[:, :-1]).mT, part[:, 1:], reduction="none")
        share = nats[asked].sum() / questions
        share.backward()
        loss += share.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


_step = partial(mutate, accumulated_step)
RATES, DECAYS = {2: 1.0, 1: 0.5}, {2: 0.1, 1: 0.05}  # of matrices and gains


def _moved_by(program, number, *inputs):
    """The loss, how far the gradient moves the weights, how far they move, and how many rows were asked at once.

    The optimizer has settings and mostly a state of its own, so that it shows if a step does without them. With FROZEN
    it also holds the frozen matrix, but not the next one.
    """
    model, is_new = small_model(number), number == WITH_GRADIENTS
    weights = list(model.parameters())
    held = [weight for place, weight in enumerate(weights) if number != FROZEN or place != 3]
    groups = [{"params": [w for w in held if w.ndim == n], "lr": RATES[n], "weight_decay": DECAYS[n]} for n in RATES]
    optimizer = torch.optim.SGD(groups, momentum=0.5)
    for weight in () if is_new else held:
        optimizer.state[weight]["momentum_buffer"] = torch.full_like(weight, 0.02)
    settings_of = lambda: [{k: one.get(k) for k in optimizer.defaults} for one in optimizer.param_groups]  # noqa: E731
    before, was, steps = parameters_to_vector(weights).detach().double(), settings_of(), []
    is_kept = lambda: is_new or all("momentum_buffer" in optimizer.state.get(one, ()) for one in held)  # noqa: E731
    for_each = lambda said: torch.cat([torch.full((w.numel(),), float(said(w))) for w in weights])  # noqa: E731
    optimizer.register_step_pre_hook(lambda *_: steps.append((settings_of(), is_kept())))
    goes = for_each(lambda w: w.requires_grad and any(w is one for one in held))
    alone = goes * (for_each(lambda w: DECAYS[w.ndim]) * before + 0.01 * (not is_new))  # without a gradient
    loss = _trained(program, model, optimizer, *inputs)
    if not all(one.training for one in model.modules()):
        raise Wrong("the model is in eval mode afterwards.", "One step leaves a model in train mode, as it was.")
    moved = (before - parameters_to_vector(weights).detach()) / for_each(lambda w: RATES[w.ndim])
    found = [f"{len(steps)} steps of the optimizer, expected one"] * (len(steps) != 1)
    for now, has_state in (*steps, (settings_of(), is_kept())):
        found += ["its state is gone"] * (not has_state)
        for mine, first in zip(now, was, strict=False):
            changed = [name for name in first if mine[name] != first[name]]
            found += [f"its {name} is {mine[name]}, expected {first[name]}" for name in changed]
    found += ["it has another number of groups"] * (len(optimizer.param_groups) != len(was))
    if moved.any() and found:
        hint = "Take one step of the optimizer, with its settings and state as they are, when the gradient is whole."
        raise Wrong(f"{'; '.join(dict.fromkeys(found))}.", hint)
    if moved[for_each(lambda w: not w.requires_grad) > 0].any():
        raise Wrong("a frozen weight has moved.", FROZEN_DECAYS)
    pulled = moved - alone
    return loss, pulled, moved, max((len(call.tokens) for call in model.calls), default=0)


def _loss_and_gradient(function, number, _, rows, lengths, micro):
    """The loss, and how long the gradient is and how far turned."""
    right = _moved_by(accumulated_step, number, rows, lengths, micro)[1]
    loss, pulled, moved, most = _moved_by(function, number, rows, lengths, micro)
    if most > micro:
        raise Wrong(f"the model is asked {most} rows at once, micro is {micro}.", REST if len(rows) % micro else EACH)
    if isinstance(loss, torch.Tensor) and not loss.requires_grad:
        raise Wrong("the loss is a tensor, a number is expected.", "Add up part.item(): it makes a number of a tensor.")
    loss = _as_number(loss, "Add up part.item().")
    if not moved.any() or pulled.norm() < 1e-4:  # rounding alone
        raise Wrong("the weights do not move." if not moved.any() else "no gradient moves the weights.", UNMOVED)
    half = (pulled / pulled.norm() - right / right.norm()).norm() / 2  # the sine of half the angle between them
    return torch.tensor(loss), pulled.norm(), torch.rad2deg(2 * half.asin()).round(decimals=1)


def _padded(*lengths, fill=0, spare=2):
    rows = _TEXT[: 9 * len(lengths)].view(-1, 9).clone()
    for row, length in zip(rows, lengths, strict=True):
        row[length:] = row[length:] if fill is None else fill
    return rows[:, : max(lengths) + spare], torch.tensor(lengths)


def _accumulates(number, padded, micro):
    return _number(number), "SGD: lr 1 for matrices, 0.5 for gains; momentum, decay", *padded, micro


EACH = "Call it once for each micro-batch."
REST = "Here micro does not divide the number of rows: are the rows left over a micro-batch of their own?"
UNEVEN = "A micro-batch may hold fewer rows, fewer predictions, or none: what is its share of the whole?"
FULL_ROW = "A row without padding has T + 1 tokens, and its last prediction counts."
UNDERFLOWS = "A softmax rounds to 0 here; its logarithm is -inf or, clamped, constant. cross_entropy takes the logits."
MIXED = "Here padding is no one token, and not every weight learns: do the lengths alone say what counts?"
WHOLE = "Here one call holds the whole batch, and all rules hold as before: padding, old gradients, clipping."
SHARE, QUESTIONS = "nats[asked].sum() / questions", "(lengths - 1).sum()"
AT_MOST_T = ".clamp(max=rows.shape[1] - 1)"
check_accumulated_step = check_of(Exercise(accumulated_step, [
    Case("2 rows of 3 and 7 tokens, one per micro-batch", _accumulates(1, _padded(3, 7), 1)),
    Case("tokens that the model holds impossible", _accumulates(SURE, _padded(6, 3, 4, 5), 2), UNDERFLOWS),
    Case("4 rows, two per micro-batch, padded with 5", _accumulates(SHORT, _padded(2, 7, 6, 6, fill=5), 2)),
    Case("3 rows in one micro-batch, the first without padding, old gradients, a new optimizer",
         _accumulates(WITH_GRADIENTS, _padded(6, 3, 4, spare=0), 8), WHOLE),
    Case("3 rows, padded with other tokens, two at once, old gradients, a frozen matrix, one not in the optimizer",
         _accumulates(FROZEN, _padded(6, 3, 4, fill=None, spare=0), 2), MIXED),
    Case("a micro-batch without a prediction", _accumulates(3, _padded(6, 4, 1, 1, 1, 5, 5), 2), UNEVEN),
], [  # known mistakes
    ("Yours is the mean of the micro-batches' means.", _step(SHARE, "nats[asked].mean().nan_to_num() / len(parts)")),
    ("Is it one mean over all? You add up the micro-batches' means.", _step(SHARE, "nats[asked].mean().nan_to_num()")),
    ("Is the last micro-batch used, where it holds fewer rows?",
     _step("in parts:", "in parts[: len(rows) // micro or 1]:")),
    ("Does a micro-batch without a prediction end the loop? The ones behind it count, too.",
     _step("        nats =", "        if not asked.any():\n            break\n        nats =")),
    *[(FULL_ROW, _step("length[:, None]", f"length[:, None]{AT_MOST_T}", QUESTIONS, count))
      for count in (QUESTIONS, f"(lengths{AT_MOST_T} - 1).sum()")],
    ("Has a text of one token a prediction? All that follows its token is padding, so it has none.",
     _step("length[:, None] - 1", "(length[:, None] - 1).clamp(min=1)", QUESTIONS, "(lengths - 1).clamp(min=1).sum()")),
    ("Does padding count? Leave it out of sum and count.", _step(SHARE, "nats.sum() / rows[:, 1:].numel()")),
    ("Has a row of n tokens n predictions? You divide by the tokens.", _step(QUESTIONS, "lengths.sum()")),
    ("Is the sum divided by the number of predictions? You divide by that of rows.", _step(QUESTIONS, "len(rows)")),
    ("Are predictions counted by lengths?", _step(SHARE, "nats[part[:, 1:] != 0].sum() / (rows[:, 1:] != 0).sum()")),
    ("Is the old gradient cleared, once, before the first micro-batch?", _step("    model.zero_grad()\n", "")),
    (OLD_COUNT, _step("    model.zero_grad()\n", "    optimizer.zero_grad()\n")),
    ("Do the micro-batches' gradients add up? You clear them each time.",
     _step("share.b", "model.zero_grad(), share.b")),
    ("Is the gradient clipped once, when whole?", _step(CLIP, "", "share.backward()", f"share.backward(), {CLIP}")),
    ("Is the gradient clipped? One longer than 1.0 is shortened to 1.0.", _step(CLIP, "")),
    ("Is it the length of the whole gradient? You clip each group of the optimizer by its own.",
     _step(CLIP, "[torch.nn.utils.clip_grad_norm_(group['params'], 1.0) for group in optimizer.param_groups]")),
    ("Is its length limited? You limit each number of it.", _step("clip_grad_norm_", "clip_grad_value_")),
], harness=Harness(_loss_and_gradient, max_failures=3, parts=(
    "the loss", "the length of the gradient", "the angle [degrees] between the gradient and the right one",
))))  # fmt: skip


LOOPS = {"A": "inputs as targets", "B": "rate never set", "C": "clipped after the step", "D": "gradients add up"}
STEPS, WARM_UP, PEAK, MAX_NORM = 60, 10, 5e-3, 0.5  # of the right loop


class Loop:
    """A new small model with its training loop, of 60 steps."""

    def __init__(self, bug=""):
        sizes = {"vocab_size": 512, "dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 128}
        constants = {"max_seq_len": 32, "norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_embeddings": True}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(6)
            self.model = Llama(LlamaConfig(**sizes, **constants))
        decays = {2: 0.1, 1: 0.1 if bug == "gains decay" else 0.0}  # matrices and gains
        weights = list(self.model.parameters())
        groups = [{"params": [w for w in weights if w.ndim == n], "weight_decay": decays[n]} for n in decays]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.95))
        self._done = 0
        self.step = MethodType(_step_with(bug), self)


def _step_with(bug):
    """A loop's `step` as a closure, so that no attribute of the loop tells its bug."""

    def step(loop, inputs, targets):
        """One training step on inputs and targets, both (B, T) int64; returns the loss before it [nat/token]."""
        weights = list(loop.model.parameters())
        if bug != "rate never set":
            rate = learning_rate(loop._done, STEPS, PEAK, 0 if bug == "no warm-up" else WARM_UP)
            for group in loop.optimizer.param_groups:
                group["lr"] = rate
        asked = (inputs if bug == "inputs as targets" else targets)[..., None]
        shares = loop.model(inputs).log_softmax(1 if bug == "softmax over positions" else 2)
        loss = -shares.gather(2, asked).mean()
        if bug != "gradients add up":
            loop.optimizer.zero_grad()
        loss.backward()
        if bug not in ("gradient not clipped", "clipped after the step"):
            torch.nn.utils.clip_grad_norm_(weights, MAX_NORM)
        loop.optimizer.step()
        if bug == "clipped after the step":
            torch.nn.utils.clip_grad_norm_(weights, MAX_NORM)
        loop._done += 1
        return loss.item()

    return step


def loops_to_examine():
    """A right loop, and the loops A, B, C, D, each with one of the LOOP_BUGS; all begin with the same weights.

    Returns:
        right, {"A": loop, "B": loop, "C": loop, "D": loop}; they share no memory. Another call gives new ones.
    """
    return Loop(), {letter: Loop(bug) for letter, bug in LOOPS.items()}


COUNTER_TESTS = {  # what a loop may do wrong, without a change of shape: an experiment that shows it, and no other
    "inputs as targets": "give two new copies of it the same inputs, but other targets. Do the losses differ?",
    "softmax over positions": "its first loss is far from ln 32, the mean over 32 positions that are equally likely.",
    "gradients add up": "clear the gradients yourself between two steps of one of two copies. Do both end alike?",
    "gradient not clipped": "how long is the whole gradient after step 1? Without clipping it is longer than 0.5.",
    "clipped after the step": "is AdamW's exp_avg after one step a tenth of the gradient? Clipped too late it is not.",
    "no warm-up": "print the learning rate after steps 1, 2 and 60. Without warm-up it begins at the peak, and falls.",
    "rate never set": "print the learning rate after steps 1, 2 and 60. Does it stay the same?",
    "gains decay": "which weight_decay has each of optimizer.param_groups, and how many dimensions have its weights?",
}
LOOP_BUGS = list(COUNTER_TESTS)


def find_loop_slips():
    """The bug of each of the four loops, {"A": ..., "B": ..., "C": ..., "D": ...}, as named in LOOP_BUGS."""
    return dict(LOOPS)


def _names_bugs(function):
    """A bug that is not in the list is refused; a wrong one gets the experiment that speaks against it."""
    answer = function()
    is_form = isinstance(answer, dict) and set(answer) == set(LOOPS)
    if not is_form or not {*map(str, answer.values())} <= {*LOOP_BUGS}:
        example = 'Return {"A": "...", "B": "...", "C": "...", "D": "..."}, each a name of LOOP_BUGS.'
        hint = TYPE_HINTS["NoneType"] if answer is None else example
        raise Wrong(f"a dictionary from A, B, C and D to names is expected, not {str(answer)[:60]}.", hint)
    if missed := [letter for letter in LOOPS if answer[letter] != LOOPS[letter]]:
        hint = f"Loop {missed[0]}: {COUNTER_TESTS[answer[missed[0]]]}"
        raise Wrong(f"{len(LOOPS) - len(missed)} of {len(LOOPS)} are right.", hint)
    return len(LOOPS)


TOOLS = ("loops_to_examine", "Loop", "Llama", "learning_rate")  # for experiments
FOUR = [Case("loops A, B, C, D", ())]
check_find_loop_slips = check_of(Exercise(find_loop_slips, FOUR, [], allow=TOOLS, harness=Harness(_names_bugs)))
