"""Lesson 1: autoregressive decoding."""

from minispec.grading.lessons import ex01_cases as cases
from minispec.grading.lessons import ex01_cases_cache as cache
from minispec.grading.lessons import ex01_pictures as pictures
from minispec.grading.lessons.ex01_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    1,
    "ex01_autoregressive_decoding",
    (
        Task(
            "1.1", "How many texts fit", "rows_that_fit", 10, 1, 10,
            (
                "What does one token leave behind in the cache? Then one text, then as many as there is room for.",
                "Each layer keeps a key and a value for each key-value head. A query head is width / heads wide, and so is a key. The "
                "weights are in the same memory. What if they alone are too large?",
                "one token = 2 (key and value) * layers * kv_heads * head width * bytes each\n"
                "one text = that * tokens\n"
                "whole texts in memory - weights, and 0 if that is below 0",
            ),
            cases.room_cases, WRONG["1.1"], pictures.room,
        ),
        Task(
            "1.2", "Drawing, to the ends of the line", "draw_rows", 15, 2, 15,
            (
                "Look at the two ends: what does the broken version do at u = 0, and what at a u close to 1?",
                "A token's piece is [sum before it, sum with it): the left end belongs to it, the right end to the next one. A token with "
                "p = 0 has a piece without points. And how long is the whole line, as the sums in the computer have it?",
                "sums = running sums of each row\n"
                "level = u * the last sum of the row, as a column\n"
                "the token is the number of sums that are at most level",
            ),
            cases.draw_cases, WRONG["1.2"], pictures.drawn,
        ),
        Task(
            "1.3", "Every row its own settings", "processed", 20, 3, 20,
            (
                "Write it for one row, in the order temperature, top-k, top-p; then call that for each row and stack the results.",
                "For top-k, compare with the k-th largest logit. For top-p, ask for each token how much probability the tokens "
                "strictly above it have together; equal tokens then get the same answer. Three special settings: temperature 0, top_k 0, "
                "top_p 1. And what digits does bfloat16 have?",
                "x = logits in float64; temperature 0: 1 at the first largest, 0 elsewhere\n"
                "x = x / temperature\n"
                "top_k above 0 and below the number of tokens: x = -inf where x < k-th largest of x\n"
                "p = softmax(x); above[i] = sum of p[j] over all j with p[j] > p[i]\n"
                "top_p below 1: p = 0 where above >= top_p; divide p by its sum",
            ),
            cases.shape_cases, WRONG["1.3"], pictures.shapes, ("torch.float64", "torch.float32"),
        ),
        Task(
            "1.4", "Back to the fork", "branches", 15, 3, 15,
            (
                "Play the broken version through for two texts of two tokens, on paper: what is in the cache, and which position is fed?",
                "Three things must be as they were after the prompt when a text begins: the cache, the position, and the logits. And a "
                "token is read only if another one is to follow it.",
                "first = logits after the prompt, kept\n"
                "for each rank from 0 to count - 1:\n"
                "    rewind to the prompt; position = len(prompt)\n"
                "    text = [the token of that rank in first]\n"
                "    until the text is long enough or ended: read its last token at position; position + 1; append the likeliest",
            ),
            cache.branch_cases, WRONG["1.4"], pictures.branched_texts,
        ),
        Task(
            "1.5", "Positions and mask of a ragged batch", "positions_and_mask", 15, 3, 20,
            (
                "Take one row: its cache holds 4 tokens, and 2 new ones come. Where do they stand, and what does each see?",
                "In each row a position is also the number of the slot. So a token sees its own slot and all before it, of its own row. "
                "Broadcasting does the rest: lengths as a column, new tokens as a row.",
                "at = lengths as a column + 0, 1, 2, ... as a row      [batch, time]\n"
                "mask = slot numbers 0, 1, 2, ... <= at with one more axis      [batch, time, slots]",
            ),
            cache.mask_cases, WRONG["1.5"], pictures.masks,
        ),
        Task(
            "1.6", "A batch, written to its end", "write_batch", 25, 4, 40,
            (
                "Keep for each row what it reads in the next pass: first its prompt, then its last token, and nothing once it has ended.",
                "Pad what the rows read with -1 to one width. A row's logits are those of the last token that it really read. Row i's token "
                "number j uses u[i, j]. A pass is due only while some row has something to read.",
                "texts = an empty list a row; blocks = the prompts\n"
                "while any block is not empty:\n"
                "    logits = target.read(blocks, padded with -1)\n"
                "    for each row i whose block is not empty:\n"
                "        law = processed(logits[i, len(block) - 1], with its settings)\n"
                "        append draw_rows(law, u[i, how many it has]) to its text\n"
                "        block = [that token], or empty if it is eos or the budget is used up",
            ),
            cache.batch_cases, WRONG["1.6"], pictures.batches,
        ),
    ),
)  # fmt: skip
