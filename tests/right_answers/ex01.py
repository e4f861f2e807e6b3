import torch


def room_by_counting(memory, weights, layers, width, heads, kv_heads, bytes_each, tokens):
    one = layers * kv_heads * (width // heads) * tokens * bytes_each
    texts = 0
    while weights + (texts + 1) * 2 * one <= memory:
        texts += 1
    return texts


def room_by_division(memory, weights, layers, width, heads, kv_heads, bytes_each, tokens):
    numbers = layers * tokens * width * kv_heads // heads
    return int(max(memory - weights, 0) / (numbers * 2 * bytes_each))


def draw_by_search(p, u):
    sums = p.cumsum(-1)
    return torch.searchsorted(sums, (u * sums[:, -1])[:, None], right=True).flatten().tolist()


def draw_by_loop(p, u):
    tokens = []
    for law, number in zip(p.tolist(), u.tolist(), strict=True):
        there = [(x, y) for x, y in enumerate(law) if y > 0]
        whole = 0.0
        for _, y in there:
            whole += y
        reached, token = 0.0, there[-1][0]
        for x, y in there:
            reached += y
            if number * whole < reached:
                token = x
                break
        tokens.append(token)
    return torch.tensor(tokens)


def processed_by_sorting(logits, settings):
    rows = []
    for row, (temperature, top_k, top_p) in zip(
        logits.float() if logits.dtype == torch.bfloat16 else logits, settings, strict=True
    ):
        q = torch.zeros_like(row)
        if temperature == 0:
            q[row.argmax()] = 1
            rows.append(q)
            continue
        values, order = row.sort(descending=True)
        n = int((values >= values[min(top_k, len(row)) - 1]).sum()) if top_k else len(row)
        weights = ((values[:n] - values[0]) / temperature).exp()
        weights = weights / weights.sum()
        if top_p < 1:
            m = 1
            while m < n and (values[m] == values[m - 1] or weights[values[:n] > values[m]].sum() < top_p):
                m += 1
            weights = weights[:m] / weights[:m].sum()
        q[order[: len(weights)]] = weights
        rows.append(q)
    return torch.stack(rows)


def processed_by_masks(logits, settings):
    logits = logits.to(torch.float64)
    out = torch.empty_like(logits)
    for i, (temperature, top_k, top_p) in enumerate(settings):
        x = logits[i]
        if not temperature:
            out[i] = (torch.arange(len(x)) == x.argmax()).double()
            continue
        rank = (x[None] > x[:, None]).sum(1)  # how many lie strictly above each
        p = (x / temperature).softmax(0) * (rank < (top_k or len(x)))
        p = p / p.sum()
        above = (p[None] * (x[None] > x[:, None])).sum(1)
        p = p * ((above < top_p) | (top_p == 1))
        out[i] = p / p.sum()
    return out


def branches_from_the_last(target, prompt, count, most, eos):
    ranks = target.read(prompt, list(range(len(prompt))))[-1].topk(count).indices.tolist()
    texts = []
    for token in reversed(ranks):
        target.rewind(len(prompt))
        text = [token]
        for at in range(len(prompt), len(prompt) + most - 1):
            if text[-1] == eos:
                break
            text.append(target.read([text[-1]], [at])[0].argmax().item())
        texts.insert(0, text)
    return texts


def branches_by_recursion(target, prompt, count, most, eos):
    def go_on(text):
        if len(text) == most or text[-1] == eos:
            return text
        here = len(prompt) + len(text) - 1
        target.rewind(here)
        return go_on([*text, int(target.read(text[-1:], torch.tensor([here])).argmax())])

    start = target.read(torch.tensor(prompt), torch.arange(len(prompt)))[len(prompt) - 1].tolist()
    order = sorted(range(len(start)), key=lambda token: -start[token])
    return [go_on([token]) for token in order[:count]]


def masks_by_loop(tokens, lengths, slots):
    positions, mask = [], []
    for row, n in zip(tokens.tolist(), lengths, strict=True):
        here = [n + i if token >= 0 else 0 for i, token in enumerate(row)]
        positions.append(here)
        mask.append([[slot <= at for slot in range(slots)] for at in here])
    return positions, mask


def masks_by_running_sum(tokens, lengths, slots):
    at = torch.tensor(lengths)[:, None] + (tokens >= 0).long().cumsum(1) - 1
    mask = torch.zeros(*tokens.shape, slots + 1, dtype=torch.bool)
    mask.scatter_(2, (at + 1).clamp(0, slots)[:, :, None], True)
    return at, ~mask.cumsum(2).bool()[:, :, :slots]


def batch_by_rows(target, prompts, u, budgets, eos, settings):
    texts, new = [[] for _ in prompts], dict(enumerate(prompts))
    while new:
        block = torch.full((len(prompts), max(map(len, new.values()))), -1)
        for i, ids in new.items():
            block[i, : len(ids)] = torch.tensor(ids)
        logits = target.read(block)
        rows = list(new)
        laws = processed_by_masks(torch.stack([logits[i, len(new[i]) - 1] for i in rows]), [settings[i] for i in rows])
        tokens = draw_by_search(laws, torch.stack([u[i, len(texts[i])] for i in rows]))
        for i, token in zip(rows, tokens, strict=True):
            texts[i].append(token)
        new = {i: texts[i][-1:] for i in rows if texts[i][-1] != eos and len(texts[i]) < budgets[i]}
    return texts


def batch_for_all_rows(target, prompts, u, budgets, eos, settings):
    rows = torch.arange(len(prompts))
    block = torch.nn.utils.rnn.pad_sequence([torch.tensor(p) for p in prompts], batch_first=True, padding_value=-1)
    columns = []
    for step in range(max(budgets)):
        counts = (block >= 0).sum(1)
        if not counts.any():
            break
        logits = target.read(block)[rows, counts.clamp(min=1) - 1]
        logits[counts == 0] = 0
        column = torch.as_tensor(draw_by_loop(processed_by_masks(logits, settings), u[:, step]))
        column[counts == 0] = -1
        columns.append(column)
        ended = (column == eos) if eos is not None else torch.zeros(len(rows), dtype=torch.bool)
        ended |= torch.tensor(budgets) == step + 1
        block = torch.where(ended, -1, column)[:, None]
    return [[x for x in row if x >= 0] for row in torch.stack(columns, 1).tolist()]


RIGHT = {
    "1.1": [room_by_counting, room_by_division],
    "1.2": [draw_by_search, draw_by_loop],
    "1.3": [processed_by_sorting, processed_by_masks],
    "1.4": [branches_from_the_last, branches_by_recursion],
    "1.5": [masks_by_loop, masks_by_running_sum],
    "1.6": [batch_by_rows, batch_for_all_rows],
}
