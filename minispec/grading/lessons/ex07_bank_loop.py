"""Wrong answers to task 7.4, the loop for a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minispec.grading.lessons.ex02_cases import accepted
from minispec.grading.task import Wrong


def loop(fault: str) -> Callable[..., Any]:
    def speculate_batch(target: Any, draft: Any, prompts: list[list[int]], most: int, count: int, eos: int | None) -> Any:
        texts, rows = [prompt[:] for prompt in prompts], list(range(len(prompts)))
        drafts: list[list[int]] = [[] for _ in rows]
        blocks = texts
        done = [False] * len(rows)
        eos = eos or None if fault == "zero is no eos" else eos
        while rows:
            width = max(map(len, blocks))
            answers = target.read([[*b, *[-1] * (width - len(b))] for b in blocks]).tolist()
            found = []
            for b, d, own in zip(blocks, drafts, answers, strict=True):
                at = width - 1 if fault == "last column" and not d else len(b) - len(d) - 1
                own = own[at : at + len(d) + 1]
                n = accepted(d, own)
                found.append([*d[:n], own[-1] if fault == "last answer" else own[n]])
            if fault == "in step":
                found = [new[: min(map(len, found))] for new in found]
            for row, (request, new) in enumerate(zip(rows, found, strict=True)):
                if fault == "tokens by row":
                    request = row
                new = new if fault == "overshoots" else new[: most - len(texts[request]) + len(prompts[request])]
                if eos in new and fault != "no end":
                    new = new[: new.index(eos) + 1]
                if not done[request] or fault == "ended go on":
                    texts[request] += new
            written = [len(text) - len(prompt) for text, prompt in zip(texts, prompts, strict=True)]
            for r in rows:
                done[r] = written[r] >= most or (texts[r][-1] == eos and written[r] > 0 and fault != "no end")
                done[r] |= fault == "prompt ends" and eos in texts[r]
            going = [row for row, r in enumerate(rows) if not done[r]]
            if not going or (fault == "first end" and len(going) < len(rows)):
                break
            if fault == "ended stay":
                going = list(range(len(rows)))
            rows = [rows[row] for row in going]
            if fault != "cache keeps all":
                target.keep_rows(list(range(len(rows))) if fault == "first rows" else going)
            lengths = [len(texts[r]) - 1 for r in rows]
            if fault == "one length":
                lengths = [min(lengths)] * len(rows)
            if fault == "pending kept":
                kept = zip(
                    [len(texts[r]) for r in rows], [len(found[row]) - 1 < len(drafts[row]) for row in going], strict=True
                )
                lengths = [n - 1 + rejected for n, rejected in kept]
            if fault != "no rewind":
                target.rewind(lengths)
            left = [most - written[r] for r in rows]
            limit = [count if fault in ("overdrafts", "overshoots", "cuts") else max(0, min(count, n - 1)) for n in left]
            if fault == "shortest budget":
                limit = [min(limit)] * len(rows)
            drafts = [
                draft(row if fault == "drafts by row" else r, texts[r], n)
                for row, (r, n) in enumerate(zip(rows, limit, strict=True))
            ]
            if fault == "cuts":
                drafts = [d[: n - 1] for d, n in zip(drafts, left, strict=True)]
            if fault == "shortest draft":
                drafts = [d[: min(map(len, drafts))] for d in drafts]
            blocks = [[texts[r][-1], *d] for r, d in zip(rows, drafts, strict=True)]
        return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]

    return speculate_batch


LOOP = [
    Wrong("it asks the drafter by row number: once a request has ended, drafts go to the wrong one; text stays right, acceptance falls", loop("drafts by row")),
    Wrong("it gives a row's tokens to the request of that number; once one has ended, rows and requests part", loop("tokens by row")),
    Wrong("all rows advance by as much as the worst row accepts; each row has its own length", loop("in step")),
    Wrong("requests that have ended stay in the batch, and every pass reads a row for them", loop("ended stay")),
    Wrong("it stops when the first request ends; the others go on", loop("first end")),
    Wrong("it takes the answer in the last column for every prompt; a shorter prompt has padding there", loop("last column")),
    Wrong("it drops the requests that ended from its own lists, but not from the cache", loop("cache keeps all")),
    Wrong("of the cache it keeps the first rows, whichever ended: keep those that go on", loop("first rows")),
    Wrong("it rewinds all rows to the shortest text; each row has its own length", loop("one length")),
    Wrong("it never rewinds: rejected guesses stay in the caches, and the texts follow them", loop("no rewind")),
    Wrong("after a rejection a row's cache keeps one token too many; the pending one is not read yet", loop("pending kept")),
    Wrong("it takes the last answer for the correction; that stands behind the accepted guesses", loop("last answer")),
    Wrong("it cuts every draft to the shortest; padding lets them differ", loop("shortest draft")),
    Wrong("it gives all rows the budget of the one with the least left", loop("shortest budget")),
    Wrong("it drafts beyond what a request may still emit: the target's own token takes one place", loop("overdrafts")),
    Wrong("it asks for more guesses than may be emitted, and cuts them; they cost the drafter passes: ask for fewer", loop("cuts")),
    Wrong("a request emits more than max_new_tokens", loop("overshoots")),
    Wrong("it goes on behind the end-of-text token", loop("no end")),
    Wrong("it takes an end-of-text id of 0 for none: ask `eos is not None`", loop("zero is no eos")),
    Wrong("it looks for the end-of-text token in the prompt too; only an emitted one ends a request", loop("prompt ends")),
]  # fmt: skip
