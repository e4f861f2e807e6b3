def match_by_steps(text, size, which):
    best = None
    for start in range(len(text)):
        stop = start + size
        if stop < len(text) and all(text[start + i] == text[len(text) - size + i] for i in range(size)):
            best = stop
            if which == "earliest":
                return best
    return best


def match_backwards(text, size, which):
    order = range(len(text) - 1, size - 1, -1) if which == "latest" else range(size, len(text))
    return next((end for end in order if text[end - size : end] == text[-size:]), None)


def guess_by_words(text, sizes, most, left, eos):
    if left < 2:
        return []
    places = [match_by_steps(text, size, "latest") for size in sorted(sizes)]
    places = [place for place in places if place is not None]
    guesses = []
    for token in text[places[-1] :] if places else []:
        guesses.append(token)
        if token == eos or len(guesses) in (most, left - 1):
            break
    return guesses


def guess_by_slices(text, sizes, most, left, eos):
    for size in range(max(sizes), 0, -1):
        if size in sizes and (place := match_backwards(text, size, "latest")) is not None:
            ends = [i + 1 for i, token in enumerate(text[place:]) if token == eos]
            return text[place:][: min([most, left - 1, *ends])]
    return []


def table_by_tokens(table, text, new, sizes):
    seen = list(text)
    for token in new:
        for n in sizes:
            if 0 < n <= len(seen):
                table.put(seen[-n:], len(seen))
        seen.append(token)


def table_once_each(table, text, new, sizes):
    whole, noted = text + new, {}
    for n in sizes:
        for start in range(max(0, len(text) - n), len(whole) - n):
            noted[tuple(whole[start : start + n])] = start + n
    for ngram in sorted(noted):
        table.put(list(ngram), noted[ngram])


def batch_by_requests(tables, texts, active, left, most, sizes, eos):
    def draft(table, text, rest):
        for n in sorted((n for n in sizes if n <= len(text)), reverse=True):
            place = table.get(text[len(text) - n :])
            if place is None:
                continue
            copy = text[place : place + min(most, rest - 1)]
            return copy[: copy.index(eos) + 1] if eos in copy else copy
        return []

    drafts = [draft(tables[i], texts[i], left[i]) for i in active]
    while len({len(x) for x in drafts}) > 1:
        drafts = [[*x, -1] if len(x) < max(map(len, drafts)) else x for x in drafts]
    return drafts


def batch_with_tensors(tables, texts, active, left, most, sizes, eos):
    import torch

    rows = []
    for request in active:
        text, row = texts[request], []
        known = [tables[request].get(tuple(text[-n:])) for n in sorted(sizes) if n <= len(text)]
        known = [place for place in known if place is not None]
        while known and len(row) < min(most, left[request] - 1, len(text) - known[-1]) and (not row or row[-1] != eos):
            row.append(text[known[-1] + len(row)])
        rows.append(torch.tensor(row, dtype=torch.long))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def length_by_time_a_token(rounds, cost):
    best, least = 0, cost[1]
    for n in range(1, max(drafted for drafted, _ in rounds) + 1):
        tokens, seconds = 0, 0
        for drafted, accepted in rounds:
            tokens += 1 + (accepted if accepted < n else n)
            seconds += cost[1 + (drafted if drafted < n else n)]
        if seconds / tokens < least:
            best, least = n, seconds / tokens
    return best, cost[1] / least


def length_by_table(rounds, cost):
    gains = {
        n: cost[1] * sum(1 + min(a, n) for _, a in rounds) / sum(cost[1 + min(d, n)] for d, _ in rounds)
        for n in range(len(cost) - 1)
    }
    best = max(gains, key=lambda n: (gains[n], -n))
    return [best, gains[best]]


RIGHT = {
    "4.1": [match_by_steps, match_backwards],
    "4.2": [guess_by_words, guess_by_slices],
    "4.3": [table_by_tokens, table_once_each],
    "4.4": [batch_by_requests, batch_with_tensors],
    "4.5": [length_by_time_a_token, length_by_table],
}
