import torch


def count_by_loop(guesses, answers):
    counts = []
    for draft, own in zip(guesses.tolist(), answers.tolist(), strict=True):
        n = 0
        for a, b in zip(draft, own, strict=False):
            if a == -1 or a != b:
                break
            n += 1
        counts.append(n)
    return torch.tensor(counts)


def count_by_first_difference(guesses, answers):
    differs = torch.cat((guesses != answers[:, :-1], torch.ones(len(answers), 1, dtype=torch.bool)), 1)
    return differs.int().argmax(1)


def emit_one_by_one(guesses, answers, eos, budget):
    out = []
    for i, own in enumerate(answers):
        out.append(own)  # an accepted guess is the target's answer too
        if len(out) == budget or (eos is not None and own == eos) or i == len(guesses) or guesses[i] != own:
            return out
    return out


def emit_by_slices(guesses, answers, eos, budget):
    agree = [a == b for a, b in zip(guesses, answers, strict=False)] + [False]
    tokens = answers[: agree.index(False) + 1]
    ends = [i + 1 for i, token in enumerate(tokens) if token == eos]
    return tokens[: min(budget, *ends, len(tokens))]


def draft_from_the_end(small, seen, text, count):
    if not count:
        return []
    keep = min(len(seen), len(text) - 1)
    while seen[:keep] != text[:keep]:
        keep -= 1
    small.rewind(keep)
    guesses = [small.read(text[keep:])[-1].argmax().item()]
    while len(guesses) < count:
        guesses.append(small.read([guesses[-1]])[0].argmax().item())
    return guesses


def draft_with_tensors(small, seen, text, count):
    n = min(len(seen), len(text) - 1)
    common = int((torch.tensor(seen[:n]) == torch.tensor(text[:n])).long().cumprod(0).sum())
    if common < len(seen):
        small.rewind(common)
    new, guesses = torch.tensor(text[common:]), []
    for _ in range(count):
        token = small.read(new).argmax(-1)[-1:]
        guesses.append(token)
        new = token
    return torch.cat(guesses) if guesses else []


def loop_with_recursion(target, draft, prompt, most, count, eos):
    def go_on(text, left):
        if left == 0 or text[-1] == eos:
            return []
        target.rewind(len(text) - 1)
        guesses = draft(text, min(count, left - 1)) if left > 1 else []
        answers = target.read([text[-1], *guesses]).argmax(-1).tolist()
        new = emit_one_by_one(guesses, answers, eos, left)
        return [new, *go_on([*text, *new], left - len(new))]

    first = int(target.read(prompt)[-1].argmax())
    return [[first], *go_on([*prompt, first], most - 1)]


def loop_that_rewinds_late(target, draft, prompt, most, count, eos):
    out, done = [[target.read(torch.tensor(prompt)).argmax(-1)[-1].item()]], 1
    text = prompt + out[0]
    while done < most and not (eos is not None and eos in out[-1]):
        guesses = list(draft(list(text), min(count, most - done - 1)))
        best = target.read(text[-1:] + guesses).argmax(-1)
        new = []
        for i, own in enumerate(best.tolist()):
            new.append(own)
            if own == eos or i == len(guesses) or guesses[i] != own:
                break
        out.append(new)
        text, done = text + new, done + len(new)
        target.rewind(len(prompt) + done - 1)
    return out


def part_with_next(first, second, logits):
    at = next((i for i in range(min(len(first), len(second))) if first[i] != second[i]), None)
    return None if at is None else (at, (logits[at][first[at]] - logits[at][second[at]]).item())


def part_with_tensors(first, second, logits):
    n = min(len(first), len(second))
    apart = (torch.tensor(first[:n]) != torch.tensor(second[:n])).nonzero()
    if not len(apart):
        return None
    i = apart[0, 0]
    return [i, logits[i].index_select(0, torch.tensor([first[i], second[i]])).diff()[0] * -1]


RIGHT = {
    "2.1": [count_by_loop, count_by_first_difference],
    "2.2": [emit_one_by_one, emit_by_slices],
    "2.3": [draft_from_the_end, draft_with_tensors],
    "2.4": [loop_with_recursion, loop_that_rewinds_late],
    "2.5": [part_with_next, part_with_tensors],
}
