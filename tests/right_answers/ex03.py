import torch


def residual_by_rows(p, q):
    rows = []
    for a, b in zip(p, q, strict=True):
        wide = torch.zeros_like(a)
        wide[: len(b)] = b
        left = torch.maximum(a - wide, torch.zeros_like(a))
        rows.append(left / left.sum() if left.sum() > 0 else a)
    return torch.stack(rows)


def residual_by_minimum(p, q):
    wide = torch.nn.functional.pad(q, (0, p.shape[1] - q.shape[1]))
    left = p - torch.minimum(p, wide)
    empty = left.sum(1) == 0
    left[empty] = p[empty]
    return left / left.sum(1, keepdim=True)


def keep_by_ratio(log_p, log_q, u):
    return torch.where(u > 0, u < (log_p - log_q).exp(), log_p > -torch.inf)  # exp may be 0 where p is not


def keep_by_sum(log_p, log_q, u):
    return [a > b for a, b in zip(log_p.tolist(), (u.log() + log_q).tolist(), strict=True)]


def honest_by_sorting(logits, temperature, top_k):
    q = torch.zeros_like(logits)
    if temperature == 0:
        q[logits.argmax()] = 1
        return q
    order = logits.argsort(descending=True)
    kept = order[:top_k] if top_k else order
    q[kept] = torch.softmax(logits[kept] / temperature, 0)
    return q


def honest_by_exp(logits, temperature, top_k):
    if temperature == 0:
        return (logits == logits.max()).double()
    weights = ((logits - logits.max()) / temperature).exp()
    if 0 < top_k < len(logits):
        weights[weights.argsort()[: len(logits) - top_k]] = 0
    return weights / weights.sum()


def pick(p, u):
    return min(int(torch.searchsorted(p.cumsum(0), u * p.sum(), right=True)), len(p) - 1)


def chain_by_ratio(guesses, p, q, u):
    found = []
    for draft, ps, qs, numbers in zip(guesses.tolist(), p, q, u, strict=True):
        law, n = ps[0], 0
        for i, x in enumerate(draft):
            if x < 0:
                break
            if not numbers[i + 1] < ps[i, x] / qs[i, x]:
                law = residual_by_minimum(ps[i : i + 1], qs[i : i + 1])[0]
                break
            law, n = ps[i + 1], n + 1
        found.append((n, pick(law, numbers[0])))
    return [n for n, _ in found], [x for _, x in found]


def chain_for_all_rows(guesses, p, q, u):
    rows, n = guesses.shape
    x = guesses.clamp(min=0)
    there = guesses >= 0
    at_p, at_q = (law[:, :n].gather(2, x[:, :, None])[:, :, 0] for law in (p, q))
    counts = (there & (u[:, 1:] * at_q < at_p)).long().cumprod(1).sum(1)
    every = torch.arange(rows)
    law = p[every, counts]
    rejected = counts < there.sum(1)
    q_there = q[every, counts.clamp(max=n - 1)]
    law = torch.where(rejected[:, None], residual_by_rows(law, q_there), law)
    cumulative = law.cumsum(1)
    return counts, (cumulative <= u[:, :1] * cumulative[:, -1:]).sum(1)


def siblings_by_recursion(p, q, siblings, u):
    def go(p, q, i):
        if i == len(siblings):
            return -1, pick(p, u[0])
        x = siblings[i]
        if u[i + 1] < p[x] / q[x]:
            return i, x
        rest = q.index_fill(0, torch.tensor(x), 0)
        return go(residual_by_minimum(p[None], q[None])[0], rest / rest.sum(), i + 1)

    return go(p, q, 0)


def siblings_with_logits(p, q, siblings, u):
    logits = q.log()
    for i, x in enumerate(siblings):
        now = logits.softmax(0)
        if p[x] > u[i + 1] * now[x]:
            return [i, torch.tensor(x)]
        p = (p - now).clamp(min=0)
        p = p / p.sum()
        logits[x] = float("-inf")
    return [torch.tensor(-1), pick(p, u[0])]


RIGHT = {
    "3.1": [residual_by_rows, residual_by_minimum],
    "3.2": [keep_by_ratio, keep_by_sum],
    "3.3": [honest_by_sorting, honest_by_exp],
    "3.4": [chain_by_ratio, chain_for_all_rows],
    "3.5": [siblings_by_recursion, siblings_with_logits],
}
