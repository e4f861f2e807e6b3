import itertools

import torch


def block_by_padding(pending, drafts, lengths):
    rows = [torch.tensor([first, *draft]) for first, draft in zip(pending, drafts, strict=True)]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    positions = torch.tensor(lengths)[:, None] + torch.arange(tokens.shape[1])
    return tokens, positions.masked_fill(tokens < 0, 0)


def block_cell_by_cell(pending, drafts, lengths):
    width = 1 + max(len(draft) for draft in drafts)
    tokens = torch.full((len(pending), width), -1)
    positions = torch.zeros(len(pending), width, dtype=torch.int64)
    for i in range(len(pending)):
        for j in range(1 + len(drafts[i])):
            tokens[i, j] = pending[i] if j == 0 else drafts[i][j - 1]
            positions[i, j] = lengths[i] + j
    return tokens, positions


def visible_by_loops(lengths, counts, slots):
    time = max(counts)
    return [[[slot <= n + i if i < count else slot == 0 for slot in range(slots)] for i in range(time)]
            for n, count in zip(lengths, counts, strict=True)]  # fmt: skip


def visible_by_indices(lengths, counts, slots):
    mask = torch.zeros(len(lengths), max(counts), slots, dtype=torch.bool)
    for row, n in enumerate(lengths):
        mask[row, :, :n] = True
        for i in range(counts[row]):
            mask[row, i, n : n + i + 1] = True
    return mask | (torch.arange(max(counts))[None, :, None] >= torch.tensor(counts)[:, None, None])


def roll_by_padding(dice, requests, counts):
    rows = [dice[request].roll(n + 1) for request, n in zip(requests, counts, strict=True)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def roll_one_by_one(dice, requests, counts):
    u = [[0.0] * (1 + max(counts)) for _ in requests]
    for row in reversed(range(len(requests))):  # the rows' order is all the same, for each has its own die
        for i in range(counts[row] + 1):
            u[row][i] = dice[requests[row]].roll(1)[0]
    return u


def loop_with_records(target, draft, prompts, most, count, eos):
    requests = [{"id": i, "text": list(p), "new": [], "draft": [], "block": list(p)} for i, p in enumerate(prompts)]
    active = requests
    while active:
        rows = [torch.tensor(r["block"]) for r in active]
        best = target.read(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1))
        for r, answers in zip(active, best.tolist(), strict=True):
            at = len(r["block"]) - len(r["draft"]) - 1
            for i, guess in enumerate([*r["draft"], None]):
                r["new"].append(answers[at + i])
                if len(r["new"]) == most or answers[at + i] == eos or guess != answers[at + i]:
                    break
        going = [i for i, r in enumerate(active) if len(r["new"]) < most and r["new"][-1] != eos]
        target.keep_rows(going[::-1])  # any order will do
        active = [active[i] for i in going[::-1]]
        target.rewind([len(r["text"]) + len(r["new"]) - 1 for r in active])
        for r in active:
            r["draft"] = draft(r["id"], r["text"] + r["new"], min(count, most - len(r["new"]) - 1))
            r["block"] = [r["new"][-1], *r["draft"]]
    return [r["new"] for r in requests]


def loop_with_tensors(target, draft, prompts, most, count, eos):
    new = {i: [] for i in range(len(prompts))}
    rows, guesses = list(new), torch.full((len(prompts), 0), -1)
    padded = lambda lists: torch.nn.utils.rnn.pad_sequence([torch.tensor(x).long() for x in lists], True, -1)
    own = target.read(padded(prompts))[torch.arange(len(prompts)), [len(p) - 1 for p in prompts]][:, None]
    while True:
        kept = (guesses == own[:, :-1]).long().cumprod(1).sum(1).tolist()
        ended = []
        for i, r in enumerate(rows):
            tokens = own[i, : kept[i] + 1].tolist()[: most - len(new[r])]
            stop = tokens.index(eos) + 1 if eos in tokens else len(tokens)
            new[r] = new[r] + tokens[:stop]
            ended.append(len(new[r]) == most or new[r][-1] == eos)
        if all(ended):
            return list(new.values())
        if any(ended):
            target.keep_rows([i for i, end in enumerate(ended) if not end])
        rows = [r for r, end in zip(rows, ended, strict=True) if not end]
        target.rewind([len(prompts[r]) + len(new[r]) - 1 for r in rows])
        guesses = padded([draft(r, prompts[r] + new[r], min(count, most - 1 - len(new[r]))) for r in rows])
        own = target.read(torch.cat((torch.tensor([[new[r][-1]] for r in rows]), guesses), 1))


def batch_from_the_top(curve, num_tokens, emitted, draft_s):
    def seconds(n):
        for (a, low), (b, high) in itertools.pairwise(curve):
            if a <= n <= b:
                return low * (b - n) / (b - a) + high * (n - a) / (b - a)
        return None

    batch = int(curve[-1][0]) // (1 + num_tokens)
    while batch and not emitted > (seconds(batch * (1 + num_tokens)) + draft_s) / seconds(batch):
        batch -= 1
    return batch


def batch_with_tensors(curve, num_tokens, emitted, draft_s):
    points, costs = torch.tensor(curve, dtype=torch.float64).T.contiguous()
    sizes = torch.arange(1, int(points[-1]) // (1 + num_tokens) + 1, dtype=torch.float64)

    def seconds(n):
        right = torch.searchsorted(points, n).clamp(1, len(points) - 1)
        share = (n - points[right - 1]) / (points[right] - points[right - 1])
        return torch.lerp(costs[right - 1], costs[right], share)

    pays = emitted * seconds(sizes) > seconds(sizes * (1 + num_tokens)) + draft_s
    return int((sizes * pays).max()) if len(sizes) else 0


RIGHT = {
    "7.1": [block_by_padding, block_cell_by_cell],
    "7.2": [visible_by_loops, visible_by_indices],
    "7.3": [roll_by_padding, roll_one_by_one],
    "7.4": [loop_with_records, loop_with_tensors],
    "7.5": [batch_from_the_top, batch_with_tensors],
}
