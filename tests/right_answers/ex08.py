import itertools
import math
import statistics

import torch


def positions_by_walking(rounds):
    passed, tested = {}, {}
    for drafted, accepted, _ in rounds:
        for place in range(drafted):
            tested[place] = tested.get(place, 0) + 1
            passed[place] = passed.get(place, 0) + (place < accepted)
            if place >= accepted:
                break
    return [passed[place] / tested[place] for place in sorted(tested)]


def positions_with_tensors(rounds):
    drafted, accepted, _ = torch.tensor(rounds, dtype=torch.float64).T
    places = torch.arange(int(drafted.max()))[:, None]
    tested = (torch.minimum(drafted, accepted + 1) > places).sum(1)
    return ((accepted > places).sum(1) / tested.double())[tested > 0]


def four_with_tensors(rounds):
    drafted, accepted, emitted = torch.tensor(rounds, dtype=torch.float64).T
    first = accepted[drafted > 0] > 0
    share = torch.nan_to_num(accepted.sum() / drafted.sum())
    return share, accepted.mean(), emitted.mean(), first.double().mean() if len(first) else 0


def four_by_counting(rounds):
    guesses = [i < accepted for drafted, accepted, _ in rounds for i in range(drafted)]
    firsts = [accepted >= 1 for drafted, accepted, _ in rounds if drafted >= 1]
    mean = lambda values: sum(values) / len(values) if values else 0.0
    return [mean(guesses), mean([a for _, a, _ in rounds]), mean([e for _, _, e in rounds]), mean(firsts)]


def times_by_gaps(passes):
    gaps = [b[0] - a[0] for a, b in itertools.pairwise(passes)]
    tokens = [n for _, n in passes][1:]
    if not gaps:
        return passes[0][0], 0, 0
    return passes[0][0], sum(gaps) / sum(tokens), statistics.mean(tokens)


def times_by_all(passes):
    moments, counts = zip(*passes, strict=True)
    after = sum(counts) - 1
    each = (moments[-1] - moments[0]) / after if after else 0.0
    return [moments[0], each, after / max(1, len(passes) - 1)]


def length_by_running_sum(rates, cost, draft_s):
    best, gain, reached, tokens, spent = 0, 1.0, 1.0, 1.0, 0.0
    for n, rate in enumerate(rates):
        spent += reached * (1 - rate) * (cost[n + 1] + n * draft_s)
        reached *= rate
        tokens += reached
        now = tokens / ((cost[n + 2] + (n + 1) * draft_s) / cost[1])
        if now > gain + 1e-12:
            best, gain = n + 1, now
    spent += reached * (cost[len(rates) + 1] + len(rates) * draft_s)
    return best, gain, tokens / spent * cost[1]


def length_by_enumeration(rates, cost, draft_s):
    """Every pattern of guesses that would pass or fail, with its weight."""
    mean_time, mean_tokens = [0.0] * (len(rates) + 1), [0.0] * (len(rates) + 1)
    oracle_time = oracle_tokens = 0.0
    for pattern in itertools.product((True, False), repeat=len(rates)):
        weight = math.prod(rate if ok else 1 - rate for rate, ok in zip(rates, pattern, strict=True))
        right = [*pattern, False].index(False)
        for n in range(len(rates) + 1):
            mean_tokens[n] += weight * (1 + min(n, right))
            mean_time[n] += weight * (cost[1 + n] + n * draft_s)
        oracle_tokens += weight * (1 + right)
        oracle_time += weight * (cost[1 + right] + right * draft_s)
    gains = [round(a / b * cost[1], 9) for a, b in zip(mean_tokens, mean_time, strict=True)]
    return gains.index(max(gains)), max(gains), oracle_tokens / oracle_time * cost[1]


def paired_with_tensors(base, mine):
    ratios = (torch.tensor(base) / torch.tensor(mine)).double()
    own = ratios.quantile(0.5, dim=1)
    return own.quantile(0.5), own.min(), own.max()


def paired_by_sorting(base, mine):
    def middle(values):
        ordered, half = sorted(values), len(values) // 2
        return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2

    own = sorted(middle([a / b for a, b in zip(*both, strict=True)]) for both in zip(base, mine, strict=True))
    return middle(own), own[0], own[-1]


def claim_by_pascal(ratios, claim):
    row = [1]
    for _ in ratios:
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    outside, k = 0, 0
    while 2 * (outside + row[k]) <= 0.05 * sum(row):
        outside += row[k]
        k += 1
    if k == 0:
        return None, None, "cannot tell"
    low, high = sorted(ratios)[k - 1], sorted(ratios, reverse=True)[k - 1]
    if claim > high:
        return low, high, "not supported"
    return low, high, "cannot tell" if claim > low else "supported"


def claim_with_tensors(ratios, claim):
    n = len(ratios)
    below = torch.tensor([math.comb(n, i) for i in range(n)], dtype=torch.float64).cumsum(0) / 2.0**n
    k = int((1 - 2 * below[: max(1, n // 2)] >= 0.95).sum())
    if not k:
        return [None, None, "cannot tell"]
    ordered = torch.tensor(ratios, dtype=torch.float64).sort().values
    low, high = ordered[k - 1], ordered[n - k]
    names = {(True, False): "supported", (False, True): "not supported", (False, False): "cannot tell"}
    return [low, high, names[bool(low >= claim), bool(high < claim)]]


RIGHT = {
    "8.1": [positions_by_walking, positions_with_tensors],
    "8.2": [four_with_tensors, four_by_counting],
    "8.3": [times_by_gaps, times_by_all],
    "8.4": [length_by_running_sum, length_by_enumeration],
    "8.5": [paired_with_tensors, paired_by_sorting],
    "8.6": [claim_by_pascal, claim_with_tensors],
}
