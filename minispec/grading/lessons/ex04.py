"""Lesson 4: n-gram lookup."""

from minispec.grading.lessons import ex04_cases as cases
from minispec.grading.lessons import ex04_pictures as pictures
from minispec.grading.lessons.ex04_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    4,
    "ex04_ngram_lookup",
    (
        Task(
            "4.1", "Where does it go on?", "find_match", 15, 2, 10,
            (
                "Collect all places where the n-gram stands, then choose. Which place must not be among them?",
                "The ending itself begins at len(text) - size, so a match begins before that. If the text is too short there is no such "
                "place. What is wanted is not where the match begins but where it is over. And 0 is a place, None is not.",
                "found = all at from 0 to len(text) - size - 1 with text[at : at + size] equal to the last size tokens\n"
                "nothing found: None\n"
                "the last or the first of them, plus size",
            ),
            cases.match_cases, WRONG["4.1"], pictures.matches,
        ),
        Task(
            "4.2", "A guess that can be used", "guess_next", 15, 2, 15,
            (
                "Three steps: find a place (4.1), copy from there, cut what cannot be used.",
                "How many tokens may be drafted if `left` may still be emitted, and one of them is the target's own? A copy may be shorter "
                "than that; it is used. Cut behind the first end-of-text token. And look at the order of `sizes`.",
                "for each size, the largest first:\n"
                "    place = find_match(text, size, 'latest')\n"
                "    if there is one: copy = text from place on, at most min(most, left - 1) tokens\n"
                "        if eos is in copy: cut behind its first occurrence\n"
                "        return copy\n"
                "return []",
            ),
            cases.guess_cases, WRONG["4.2"], pictures.guesses,
        ),
        Task(
            "4.3", "A table that grows with the text", "extend_table", 25, 4, 30,
            (
                "Go through the new tokens one by one. When a token comes, which n-grams have just got a continuation?",
                "A token at place `end` follows the n-grams that end right before it. So the n-gram at the very end of the text is not "
                "noted yet, and the first new token completes those at the end of the old text. They may reach back into it.",
                "whole = text + new\n"
                "for end from len(text) to len(whole) - 1:\n"
                "    for each size that is at most end:\n"
                "        put the size tokens before end, with place end",
            ),
            cases.table_cases, WRONG["4.3"], pictures.tables, None,
        ),
        Task(
            "4.4", "Drafts for a batch whose rows have ended", "draft_batch", 25, 4, 30,
            (
                "Write the draft of one request first, from its own table, text and rest. Then collect the rows of the active ones, and pad.",
                "Row i is request active[i]: take table, text and rest by that number. Ask the table for the longest ending first, and stop "
                "at the first answer. The width is that of the longest draft of this batch, which may be 0.",
                "for each request in active:\n"
                "    draft = []\n"
                "    for each size, the largest first, that is at most the text's length:\n"
                "        place = table.get(last size tokens); if there is one: copy as in 4.2, and stop asking\n"
                "width = length of the longest draft\n"
                "pad each draft with -1 to the width",
            ),
            cases.batch_cases, WRONG["4.4"], pictures.batches,
        ),
        Task(
            "4.5", "How long should a draft be?", "best_length", 20, 3, 25,
            (
                "Take one length n. What would each round have emitted, and what would its pass have cost?",
                "With drafts of at most n tokens a round drafts min(drafted, n) and accepts min(accepted, n). It emits one token more "
                "than it accepts, and its pass reads one token more than it drafts. Add up tokens and times over all rounds, then divide.",
                "best = 0, gain 1\n"
                "for n from 1 to the longest draft:\n"
                "    tokens = sum over rounds of min(accepted, n) + 1\n"
                "    time = sum over rounds of cost[min(drafted, n) + 1]\n"
                "    gain = tokens * cost[1] / time; if it is larger than the best one: note n and gain",
            ),
            cases.length_cases, WRONG["4.5"], pictures.lengths,
        ),
    ),
)  # fmt: skip
