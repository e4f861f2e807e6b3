"""Lesson 2: greedy verification."""

from minispec.grading import pictures
from minispec.grading.lessons import ex02_cases as cases
from minispec.grading.lessons.ex02_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    2,
    "ex02_greedy_verification",
    (
        Task(
            "2.1", "How many guesses stay, for a whole batch", "accepted_count", 15, 1, 10,
            (
                "A row accepts as long as guess and answer agree. What happens to the guesses behind the first difference?",
                "guesses[:, i] is to be compared with answers[:, i]. Then: a 1 may count only if all before it are 1. "
                "Which running operation over zeros and ones does that? Does the padding, -1, ever agree with an answer?",
                "agree = (guess == answer at the same place, and guess is a token), as 0 or 1\n"
                "running product along the row: it stays 1 up to the first 0, and is 0 from there on\n"
                "sum it along the row",
            ),
            cases.count_cases, WRONG["2.1"], pictures.counts,
        ),
        Task(
            "2.2", "What a round emits", "emit", 15, 2, 10,
            (
                "Three things in order: what was accepted, the target's own token behind it, and where the text must end.",
                "Which answer is the target's own token after n accepted guesses? The end-of-text token is emitted, and nothing "
                "behind it; it counts only where it is really emitted. And 0 is an id like any other.",
                "n = guesses that agree from the left\n"
                "new = the first n guesses, then answer number n\n"
                "cut new to the budget; if the end-of-text token is in it, cut behind its first occurrence",
            ),
            cases.emit_cases, WRONG["2.2"], pictures.emits,
        ),
        Task(
            "2.3", "A drafter that trusts nobody", "write_draft", 20, 3, 20,
            (
                "What the cache holds is still good as far as it agrees with the text. From there on it is worthless.",
                "How long is the common beginning of `seen` and `text`? Rewind to it, then read the rest of the text in one pass. "
                "At least one token must be read, else there are no logits to guess from. The last guess need not be read.",
                "common = length of the common beginning, at most len(text) - 1\n"
                "small.rewind(common); new = text from common on\n"
                "count times: logits = small.read(new); guess = likeliest token after the last one read; new = [guess]",
            ),
            cases.draft_cases, WRONG["2.3"], pictures.drafts,
        ),
        Task(
            "2.4", "The loop, to its last token", "speculate", 35, 4, 35,
            (
                "Write the loop of the notebook first, then add one corner at a time: how much may be drafted, where the text "
                "ends, what the cache must forget.",
                "Let `left` be the tokens that may still be emitted. A round emits one token more than it accepts, so a draft may "
                "have left - 1 tokens at most. After a round the cache holds all of the text but its last token. `emit` of task 2.2 "
                "does the rest.",
                "text = prompt; first = likeliest token after target.read(prompt); emitted = [[first]]\n"
                "until the budget is used up or the end-of-text token was emitted:\n"
                "    guesses = draft(text, min(count, left - 1))\n"
                "    answers = likeliest tokens of target.read([pending token, *guesses])\n"
                "    new = emit(guesses, answers, eos, left); note it, append it to text\n"
                "    target.rewind(len(text) - 1)",
            ),
            cases.loop_cases, WRONG["2.4"], pictures.rounds,
        ),
        Task(
            "2.5", "A tie, or a bug?", "parting", 15, 2, 10,
            (
                "Find the first place where both texts have a token and the tokens differ.",
                "The logits in row i are those from which token i was chosen. The gap is between the two tokens that were written, "
                "which need not be the two likeliest. A text that only ends earlier has not parted.",
                "for each place i that both texts have:\n"
                "    if the tokens differ: return i and logits[i, first token] - logits[i, second token]\n"
                "return None",
            ),
            cases.parting_cases, WRONG["2.5"], pictures.partings,
        ),
    ),
)  # fmt: skip
