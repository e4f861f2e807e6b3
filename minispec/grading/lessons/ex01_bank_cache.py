"""Wrong answers to the second half of lesson 1: rewinds, ragged batches, the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from minispec.grading.lessons.ex01_cases import shaped
from minispec.grading.task import Wrong, changes, of_kind
from minispec.sampling import draw

# 1.4


def ends_late(fault: str, text: list[int]) -> bool:
    return fault == "no end" or (fault == "first goes on" and len(text) == 1)


def brancher(fault: str) -> Callable[..., list[list[int]]]:
    def branches(target: Any, prompt: list[int], count: int, most: int, eos: int | None) -> list[list[int]]:
        n, texts = len(prompt), []
        logits = target.read(prompt, list(range(n)))[-1]
        position = n
        for rank in range(count):
            if fault not in ("runs on", "never rewinds"):
                position = n
            if rank and fault == "reads the prompt again":
                target.rewind(0)
                logits = target.read(prompt, list(range(n)))[-1]
            elif rank and fault == "reads the last of the prompt":
                target.rewind(n - 1)
                logits = target.read(prompt[-1:], [n - 1])[-1]
            elif rank and fault == "one too few":
                target.rewind(n - 1)
            elif rank and fault == "one too many" and len(texts[-1]) > 1:
                target.rewind(n + 1)
            elif rank and fault not in ("no rewind", "never rewinds"):
                target.rewind(n)
            order = (logits.half() if fault == "half" else logits).argsort(descending=True)
            now, text = logits, [int(order[0 if fault == "all alike" else rank])]
            ended = fault == "prompt ends" and eos in prompt
            while len(text) < most and (text[-1] != eos or ends_late(fault, text)) and not ended:
                at = {"from 0": position - n, "one late": position + 1, "one early": position - 1, "stands": n}
                now = target.read(text[-1:], [at.get(fault, position)])[-1]
                position += 1
                text.append(int(now.argmax()))
            if fault == "reads the last":
                target.read(text[-1:], [position])
            if fault == "stale logits":
                logits = now
            if fault == "drops eos" and text[-1] == eos:
                text = text[:-1]
            texts.append(text)
        return texts

    return branches


def grows_prompt(target: Any, prompt: list[int], count: int, most: int, eos: int | None) -> list[list[int]]:
    found = brancher("")(target, prompt, count, most, eos)
    prompt += found[-1]
    return found


def as_broken(target: Any, prompt: list[int], count: int, most: int, eos: int | None) -> list[list[int]]:
    texts, position = [], len(prompt)
    logits = target.read(prompt, list(range(len(prompt))))[-1]
    for rank in range(count):
        text = [int(logits.argsort(descending=True)[rank])]
        for _ in range(most):
            logits = target.read([text[-1]], [position])[-1]
            text.append(int(logits.argmax()))
            position += 1
        texts.append(text)
        target.rewind(len(prompt))
    return texts


BRANCH = [
    Wrong("it looks for the end-of-text token in the prompt too; only one that it writes ends a text", brancher("prompt ends")),
    Wrong("it is the broken version: play it through on paper, for two texts of two tokens", as_broken),
    Wrong("its positions run on after the rewind; they go back with the cache", brancher("runs on")),
    Wrong("it goes back in the positions, but does not rewind the cache: the text before is still seen", brancher("no rewind")),
    Wrong("it never goes back, neither in the cache nor in the positions", brancher("never rewinds")),
    Wrong("it begins a text from the logits at the end of the one before; all begin after the prompt", brancher("stale logits")),
    Wrong("it reads the prompt again for every text; its logits can be kept", brancher("reads the prompt again")),
    Wrong("it reads the prompt's last token again for its logits, which can be kept", brancher("reads the last of the prompt")),
    Wrong("it rewinds one token too far: the prompt's last one is lost", brancher("one too few")),
    Wrong("it keeps a token of the text before", brancher("one too many")),
    Wrong("all its texts begin alike; text i begins with the token of rank i", brancher("all alike")),
    Wrong("its positions begin at 0 behind the prompt; the first token there stands at len(prompt)", brancher("from 0")),
    Wrong("its positions are one too high", brancher("one late")),
    Wrong("its positions are one too low", brancher("one early")),
    Wrong("all its tokens stand at one position", brancher("stands")),
    Wrong("it reads the last token of a text: a pass for nothing", brancher("reads the last")),
    Wrong("it goes on behind the end-of-text token", brancher("no end")),
    Wrong("it goes on where a text's first token is the end of the text already", brancher("first goes on")),
    Wrong("it drops the end-of-text token; that one is written, and ends the text", brancher("drops eos")),
    Wrong("it compares logits in half precision, where different ones become equal", brancher("half")),
    Wrong(changes("prompt"), grows_prompt),
]  # fmt: skip

# 1.5


def masker(fault: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def positions_and_mask(tokens: Tensor, lengths: Sequence[int], slots: int) -> tuple[Tensor, Tensor]:
        before = torch.tensor(lengths)[:, None]
        if fault == "longest":
            before = before.max().expand_as(before)
        if fault == "first row":
            before = before[:1].expand_as(before)
        time, columns = torch.arange(tokens.shape[1]), torch.arange(slots)
        at = before + time
        mask = columns <= at[:, :, None]
        if fault == "no order":
            mask = (columns < before + (tokens >= 0).sum(1, keepdim=True))[:, None].expand_as(mask)
        if fault == "not itself":
            mask = columns < at[:, :, None]
        if fault == "no offset":
            mask = (columns <= time[:, None]).expand_as(mask)
        if fault == "new only":
            mask = mask & (columns >= before[:, :, None])
        if fault == "cache only":
            mask = (columns < before)[:, None].expand_as(mask)
        if fault == "all":
            mask = torch.ones_like(mask)
        if fault == "up to the longest":
            mask = mask | (columns < before.max())
        if fault == "inverted":
            mask = ~mask
        if fault == "above 0":
            at = before + (tokens > 0).cumsum(1) - (tokens > 0).long()
        if fault == "from 0":
            at = time.expand_as(at)
        if fault == "one late":
            at = at + 1
        return (at.double() if fault == "floats" else at), (mask.long() if fault == "0 and 1" else mask)

    return positions_and_mask


MASK = [
    Wrong("its positions begin at 0; the row's first new token stands behind what its cache holds", masker("from 0")),
    Wrong("its positions are one too high: a cache of n tokens holds positions 0 to n - 1, so the next is n", masker("one late")),
    Wrong("it counts from the longest row; each row's new tokens stand behind its own", masker("longest")),
    Wrong("it counts tokens above 0; 0 is an id, only -1 pads", masker("above 0")),
    Wrong("it takes all rows to be as long as row 0", masker("first row")),
    Wrong("a token sees those behind it in the same pass", masker("no order")),
    Wrong("a token does not see itself", masker("not itself")),
    Wrong("its mask begins at slot 0, as if the cache were empty; new token i sees i + 1 slots and all the cache held", masker("no offset")),
    Wrong("new tokens see each other alone, and not what the cache holds", masker("new only")),
    Wrong("new tokens see what the cache holds, but neither themselves nor each other", masker("cache only")),
    Wrong("every token sees every slot, used or not", masker("all")),
    Wrong("short rows see slots up to the longest row's end; behind its own end a row holds rubbish", masker("up to the longest")),
    Wrong("its mask says what may not be seen; True is for what is seen", masker("inverted")),
    Wrong(of_kind("bool", "int"), masker("0 and 1")),
    Wrong(of_kind("int", "float"), masker("floats")),
]  # fmt: skip

# 1.6


def writer(fault: str) -> Callable[..., list[list[int]]]:
    def write_batch(
        target: Any, prompts: list, u: Tensor, budgets: list[int], eos: int | None, settings: list
    ) -> list[list[int]]:
        texts: list[list[int]] = [[] for _ in prompts]
        blocks = [list(prompt) for prompt in prompts]
        ended = lambda text, most: (len(text) >= most) or (eos in text and not ends_late(fault, text))
        while any(blocks) and len(texts[0]) < 12:
            time, done = max(map(len, prompts if fault == "as wide as prompts" else blocks)), max(map(len, texts))
            logits = target.read(torch.tensor([[*block, *[-1] * (time - len(block))] for block in blocks]))
            for i, (text, block) in enumerate(zip(texts, blocks, strict=True)):
                if not block or ended(text, budgets[i]):
                    continue
                row = logits[i, -1 if fault == "last column" else len(block) - 1]
                law = shaped(row, *settings[0 if fault == "settings of row 0" else i])
                number = {"one number a row": u[i, 0], "numbers of row 0": u[0, len(text)]}.get(fault, u[i, len(text)])
                if fault == "float32":
                    text.append(min(len(law) - 1, int((law.cumsum(0) <= number.float().double() * law.cumsum(0)[-1]).sum())))
                    continue
                text.append(int(law.argmax() if fault == "greedy" else draw(law, number)))
            more = [not ended(text, most) for text, most in zip(texts, budgets, strict=True)]
            if fault == "prompt ends":
                more = [go_on and eos not in prompt for go_on, prompt in zip(more, prompts, strict=True)]
            if fault == "shortest ends all" and not all(more):
                break
            if fault == "one budget":
                more = [len(text) < max(budgets) and eos not in text for text in texts]
                budgets = [max(budgets)] * len(texts)
            if fault == "finished rows read" and any(more):
                more = [True] * len(more)
            blocks = [text[-1:] if go_on else [] for text, go_on in zip(texts, more, strict=True)]
            if fault == "whole text":
                again = zip(prompts, texts, more, strict=True)
                blocks = [[*prompt, *text] if go_on else [] for prompt, text, go_on in again]
            if fault == "reads the last" and not any(more) and done < max(map(len, texts)):
                target.read(torch.tensor([[text[-1]] for text in texts]))
        if fault == "drops eos":
            texts = [text[:-1] if text[-1] == eos else text for text in texts]
        if fault == "prompt too":
            texts = [[*prompt, *text] for prompt, text in zip(prompts, texts, strict=True)]
        return texts

    return write_batch


def counts_down(
    target: Any, prompts: list, u: Tensor, budgets: list[int], eos: int | None, settings: list
) -> list[list[int]]:
    found = writer("")(target, prompts, u, budgets, eos, settings)
    budgets[:] = [most - len(text) for most, text in zip(budgets, found, strict=True)]
    return found


BATCH = [
    Wrong("it takes the last column of the logits for every row; a shorter row's last token stands before its padding", writer("last column")),
    Wrong("it goes on behind the end-of-text token", writer("no end")),
    Wrong("it drops the end-of-text token; that one is written, and ends the text", writer("drops eos")),
    Wrong("it looks for the end-of-text token in the prompt too; only a written one ends a row", writer("prompt ends")),
    Wrong("all rows end with the first that does", writer("shortest ends all")),
    Wrong("rows that have ended are still read; padding, -1, costs them nothing", writer("finished rows read")),
    Wrong("all rows write as much as the largest budget; each has its own", writer("one budget")),
    Wrong("it reads the whole text in every pass; the cache holds it already", writer("whole text")),
    Wrong("it reads the last tokens too: a pass for nothing", writer("reads the last")),
    Wrong("it uses a row's first number for all its tokens; token j has u[i, j]", writer("one number a row")),
    Wrong("it uses the numbers of row 0 for all rows; row i has u[i]", writer("numbers of row 0")),
    Wrong("it uses the settings of row 0 for all rows", writer("settings of row 0")),
    Wrong("it takes the likeliest token instead of drawing one", writer("greedy")),
    Wrong("it returns the prompts too; wanted are the new tokens", writer("prompt too")),
    Wrong("it goes on where a row's first token is the end of the text already", writer("first goes on")),
    Wrong("every pass is as wide as the longest prompt; only the tokens that it reads need room", writer("as wide as prompts")),
    Wrong("it takes u in float32, where the largest number below 1 becomes 1, and falls off the end", writer("float32")),
    Wrong(changes("budgets"), counts_down),
]  # fmt: skip
WRONG = {"1.4": BRANCH, "1.5": MASK, "1.6": BATCH}
