import heapq

import torch


def rows_by_loop(tokens, answer, can_draft, step):
    inputs, teachers = torch.full_like(tokens, -1), torch.full_like(tokens, -1)
    counted = torch.zeros_like(answer)
    for row in range(len(tokens)):
        n = int((tokens[row] >= 0).sum())
        for place in range(n - 1 - step):
            inputs[row, place] = tokens[row, place + 1 + step]
            teachers[row, place] = place + 1 + step
            if place + 2 + step < n:
                guessed = place + 2 + step
                counted[row, place] = answer[row, guessed] and can_draft[tokens[row, guessed]]
    return inputs, teachers, counted


def rows_by_padding(tokens, answer, can_draft, step):
    time = tokens.shape[1]
    wide = torch.nn.functional.pad(tokens, (0, step + 2), value=-1)
    marks = torch.nn.functional.pad(answer & (tokens >= 0) & can_draft[tokens.clamp(min=0)], (0, step + 2))
    inputs = wide[:, step + 1 :][:, :time]
    teachers = torch.where(inputs < 0, -1, torch.arange(time) + step + 1)
    return inputs.tolist(), teachers, marks[:, step + 2 :][:, :time]


def wide_by_scatter(logits, d2t, vocab):
    where = (torch.arange(len(d2t)) + d2t).expand_as(logits)
    return torch.full((len(logits), vocab), -torch.inf, dtype=logits.dtype).scatter(1, where, logits)


def wide_by_lists(logits, d2t, vocab):
    rows = []
    for row in logits.tolist():
        wide = [float("-inf")] * vocab
        for i, x in enumerate(row):
            wide[i + int(d2t[i])] = x
        rows.append(wide)
    return rows


def mask_by_comparison(time, step):
    place, key = torch.arange(time)[:, None], torch.arange(time * (step + 1))
    first = (key < time) & (key <= place)
    return first | ((key >= time) & (key % time == place)), key % time + key // time


def mask_by_lists(time, step):
    rows = []
    for j in range(time):
        row = [i <= j for i in range(time)]
        for _ in range(step):
            row += [i == j for i in range(time)]
        rows.append(row)
    return rows, [i + s for s in range(step + 1) for i in range(time)]


def chain_by_recursion(layer, read, features, text, count, d2t):
    ids = [i + int(x) for i, x in enumerate(d2t)]

    def go(features, tokens, left):
        outputs = layer.step(features, tokens)
        guess = ids[int(layer.logits(outputs[-1:]).argmax())]
        return [guess, *(go(outputs[-1:], [guess], left - 1) if left > 1 else [])]

    if not count:
        return []
    layer.rewind(read)
    return go(features[read:], text[read + 1 :], count)


def chain_that_tidies_up(layer, read, features, text, count, d2t):
    guesses = torch.zeros(0, dtype=torch.int64)
    new, tokens = features[read:], torch.tensor(text)[read + 1 :]
    for _ in range(count):
        new = layer.step(new, tokens)[-1][None]
        column = layer.logits(new).argmax(-1)
        tokens = column + d2t[column]
        guesses = torch.cat((guesses, tokens))
    if count:
        layer.rewind(len(text) - 1)  # what was read of guessed features goes at once
    return guesses


def tree_by_heap(expand, depth, top_k, nodes):
    tokens, parents, scores, levels = [], [], [], []
    last = {0: ([], 0.0)}  # place among all candidates: path and score
    for level in range(depth):
        laws = expand([path for path, _ in last.values()])
        found = {}
        for (at, (path, score)), law in zip(last.items(), laws, strict=True):
            best = law.topk(min(top_k, len(law)))
            for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                if value == float("-inf"):
                    continue
                tokens.append(token)
                parents.append(at)
                scores.append(score + value)
                levels.append(level)
                found[len(tokens)] = ([*path, token], score + value)
        last = dict(heapq.nlargest(top_k, found.items(), key=lambda item: item[1][1]))
        if not last:
            break
    order = sorted(range(len(tokens)), key=lambda i: (-scores[i], levels[i]))[:nodes]
    place = {0: 0} | {i + 1: n + 1 for n, i in enumerate(order)}
    return [tokens[i] for i in order], [place[parents[i]] for i in order]


def tree_with_tensors(expand, depth, top_k, nodes):
    frontier, score, seen = [()], torch.zeros(1, dtype=torch.float64), {}
    for _ in range(depth):
        if not frontier:
            break
        total = score[:, None] + expand([list(path) for path in frontier])  # [paths, vocab]
        k = min(top_k, total.shape[1])
        below = {}
        for path, row in zip(frontier, total, strict=True):
            value, token = row.topk(k)
            below |= {(*path, int(x)): float(v) for v, x in zip(value, token, strict=True) if v > -torch.inf}
        seen |= below
        frontier = sorted(below, key=below.__getitem__, reverse=True)[:top_k]
        score = torch.tensor([below[path] for path in frontier], dtype=torch.float64)
    kept = sorted(seen, key=seen.__getitem__, reverse=True)[:nodes]  # stable: a level was seen before the next
    kept.sort(key=len)
    return [path[-1] for path in kept], torch.tensor([kept.index(p[:-1]) + 1 if p[1:] else 0 for p in kept])


RIGHT = {
    "6.1": [rows_by_loop, rows_by_padding],
    "6.2": [wide_by_scatter, wide_by_lists],
    "6.3": [mask_by_comparison, mask_by_lists],
    "6.4": [chain_by_recursion, chain_that_tidies_up],
    "6.5": [tree_by_heap, tree_with_tensors],
}
