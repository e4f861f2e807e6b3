import heapq
import itertools
import math

import torch


def targets_by_loop(tokens, answer, heads):
    batch, time = tokens.shape
    found = torch.full((batch, heads, time), -1)
    for row in range(batch):
        for head in range(heads):
            for place in range(time - head - 2):
                if answer[row, place + head + 2]:
                    found[row, head, place] = tokens[row, place + head + 2]
    return found


def targets_by_unfolding(tokens, answer, heads):
    kept = torch.where(answer, tokens, -1)
    wide = torch.nn.functional.pad(kept, (0, heads + 1), value=-1)  # [batch, time + heads + 1]
    return wide[:, 2:].unfold(1, tokens.shape[1], 1)[:, :heads]


def mask_by_powers(parents, lengths):
    batch, nodes = parents.shape
    up = torch.zeros(batch, nodes + 1, nodes + 1, dtype=torch.float64)
    for row, places in enumerate(parents.tolist()):
        for i, parent in enumerate(places):
            if parent >= 0:
                up[row, i + 1, parent] = 1
    reach = torch.eye(nodes + 1, dtype=torch.float64).expand(batch, -1, -1)
    total = reach
    for _ in range(nodes):
        reach = reach @ up
        total = total + reach
    mask = total > 0
    return mask, mask.sum(2) - 1 + lengths[:, None]


def mask_by_recursion(parents, lengths):
    def line(row, place):
        return [place, *(line(row, row[place - 1]) if place and row[place - 1] >= 0 else [])]

    masks, positions = [], []
    for row, length in zip(parents.tolist(), lengths.tolist(), strict=True):
        lines = [line(row, place) for place in range(len(row) + 1)]
        masks.append([[place in seen for place in range(len(row) + 1)] for seen in lines])
        positions.append([length + len(seen) - 1 for seen in lines])
    return masks, positions


def fill_by_topk(paths, logits, vocabulary):
    paths = sorted(paths, key=lambda path: (len(path), path))
    if not paths:
        return torch.zeros(len(logits), 0, dtype=torch.int64), []
    ranked = vocabulary[logits.topk(1 + max(map(max, paths))).indices]  # [batch, heads, ranks]
    tokens = ranked[:, [len(path) - 1 for path in paths], [path[-1] for path in paths]]
    return tokens, [paths.index(path[:-1]) + 1 if path[1:] else 0 for path in paths]


def fill_level_by_level(paths, logits, vocabulary):
    level, order, parents = [([], 0)], [], []
    while level:
        below = []
        for start, at in level:
            for path in sorted(path for path in paths if path[:-1] == start and len(path) == len(start) + 1):
                order.append(path)
                parents.append(at)
                below.append((path, len(order)))
        level = below
    rows = []
    for heads in logits:
        columns = [head.argsort(descending=True) for head in heads]
        rows.append([int(vocabulary[columns[len(path) - 1][path[-1]]]) for path in order])
    return rows, torch.tensor(parents, dtype=torch.int64)


def shape_by_heap(rates, cost, most):
    heap = [(-rate, [rank]) for rank, rate in enumerate(rates[0])]
    heapq.heapify(heap)
    taken, gain, best = [], 1.0, (1 / cost[0], 0)
    while heap and len(taken) < most:
        value, path = heapq.heappop(heap)
        taken.append(path)
        gain -= value
        best = max(best, (gain / cost[len(taken)], -len(taken)))
        for rank, rate in enumerate(rates[len(path)] if len(path) < len(rates) else []):
            heapq.heappush(heap, (value * rate, [*path, rank]))
    return taken[: -best[1]]


def shape_by_levels(rates, cost, most):
    level, every = [((), 1.0)], []
    for row in rates:
        level = [((*path, rank), value * rate) for path, value in level for rank, rate in enumerate(row)]
        every += level
    every = sorted(every, key=lambda node: node[1], reverse=True)[:most]
    sums = itertools.accumulate((value for _, value in every), initial=1.0)
    ratios = [gain / seconds for gain, seconds in zip(sums, cost, strict=False)]
    assert math.isfinite(max(ratios))
    return [path for path, _ in every[: ratios.index(max(ratios))]]


def medusa_with_tensors(target, heads, vocabulary, paths, prompt, max_new_tokens):
    n = len(prompt)
    logits, states = target.read(torch.tensor(prompt), torch.arange(n), torch.ones(n, n).tril().bool())
    out, length, left = [[logits[-1].argmax().item()]], n, max_new_tokens - 1
    state = states[-1]
    while left:
        fitting = [path for path in paths if len(path) < left]
        tokens, parents = fill_by_topk(fitting, heads(state)[None], vocabulary)
        parents = torch.tensor([parents], dtype=torch.int64)
        mask, positions = mask_by_powers(parents, torch.tensor([length]))
        block = torch.cat((torch.tensor(out[-1][-1:]), tokens[0]))
        logits, states = target.read(block, positions[0], mask[0])
        best, at, kept = logits.argmax(1), 0, [0]
        while len(hit := ((parents[0] == at) & (tokens[0] == best[at])).nonzero()):
            at = int(hit[0]) + 1
            kept.append(at)
        out.append(best[kept].tolist())
        target.keep(torch.tensor(kept))
        length, left, state = length + len(kept), left - len(kept), states[at]
    return out


def medusa_by_paths(target, heads, vocabulary, paths, prompt, max_new_tokens):
    n = len(prompt)
    mask = [[j <= i for j in range(n)] for i in range(n)]
    logits, states = target.read(prompt, list(range(n)), mask)
    text, out, place = list(prompt), [], n - 1
    new = [int(logits[place].argmax())]
    while True:
        text += new
        out.append(new)
        left = max_new_tokens - sum(map(len, out))
        if left == 0:
            return out
        guesses = heads(states[place]).argsort(1, descending=True)
        order = sorted([[], *(path for path in paths if len(path) < left)], key=lambda path: (len(path), path))
        tokens = [text[-1], *[int(vocabulary[guesses[len(path) - 1, path[-1]]]) for path in order[1:]]]
        sees = [[a == b[: len(a)] for a in order] for b in order]
        logits, states = target.read(tokens, [len(text) - 1 + len(path) for path in order], sees)
        answers = logits.argmax(1).tolist()

        def right(path, order=order, tokens=tokens, answers=answers):
            places = [order.index(path[:i]) for i in range(len(path) + 1)]
            return all(tokens[b] == answers[a] for a, b in itertools.pairwise(places))

        longest = max(filter(right, order), key=len)
        kept = [order.index(longest[:i]) for i in range(len(longest) + 1)]
        new, place = [answers[at] for at in kept], kept[-1]
        target.keep(kept)


RIGHT = {
    "5.1": [targets_by_loop, targets_by_unfolding],
    "5.2": [mask_by_powers, mask_by_recursion],
    "5.3": [fill_by_topk, fill_level_by_level],
    "5.4": [shape_by_heap, shape_by_levels],
    "5.5": [medusa_with_tensors, medusa_by_paths],
}
