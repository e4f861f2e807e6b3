"""Lesson 7: batches whose rows accept different numbers of guesses."""

from minispec.grading.lessons import ex07_cases as cases
from minispec.grading.lessons import ex07_pictures as pictures
from minispec.grading.lessons.ex07_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    7,
    "ex07_ragged_batches",
    (
        Task(
            "7.1", "One block for all rows", "ragged_block", 15, 1, 10,
            (
                "Make each row's block by itself first: the pending token, then its draft. Then bring all to one width.",
                "A cache that holds n tokens holds positions 0 to n - 1. So which position has the pending token of that row? And "
                "where does counting start in the row beside it?",
                "width = 1 + length of the longest draft\n"
                "tokens of a row: pending, draft, then -1 up to the width\n"
                "positions of a row: lengths[row], lengths[row] + 1, ... for its tokens, then 0 up to the width",
            ),
            cases.block_cases, WRONG["7.1"], pictures.blocks,
        ),
        Task(
            "7.2", "What a token may see", "visible_slots", 20, 3, 20,
            (
                "In which slot is token i of row b stored? Everything up to that slot is that row's text.",
                "Slot s is seen by token i of row b if s <= lengths[b] + i. That is a comparison of three things, along three "
                "dimensions: write each as a tensor with the others' dimensions of size 1. What does that give for padding?",
                "row: lengths as [rows, 1, 1]; token: 0, 1, ... as [1, time, 1]; slot: 0, 1, ... as [1, 1, slots]\n"
                "mask = slot <= row + token\n"
                "padding sees something anyway, and which slots does not matter",
            ),
            cases.visible_cases, WRONG["7.2"], pictures.seen,
        ),
        Task(
            "7.3", "Every request has its own dice", "roll_rows", 10, 2, 10,
            (
                "Think of one request, alone. How many numbers does it take in this round, and from which die?",
                "Row i is not request i for ever: rows move up when others end. And a row with a short draft must not take numbers "
                "that it does not need, or its next round begins elsewhere than it would alone.",
                "u = zeros [rows, 1 + the largest count]\n"
                "for each row: n = counts[row] + 1; u[row, first n] = dice[requests[row]].roll(n)",
            ),
            cases.roll_cases, WRONG["7.3"], pictures.rolls, ("torch.float64",),
        ),
        Task(
            "7.4", "The loop for a batch", "speculate_batch", 35, 5, 45,
            (
                "Keep one list that says which request stands in which row. Everything else belongs to a request, not to a row.",
                "After a pass, go through the rows: cut the row's answers to its own block, accept, write to the text of that row's "
                "request, and note whether it goes on. Then, once for the batch: keep the rows that go on, rewind each to its own "
                "text less the pending token, ask for drafts by the request's number.",
                "rows = all requests; blocks = the prompts; drafts = nothing\n"
                "as long as there are rows:\n"
                "    answers = target.read(blocks, padded)\n"
                "    for each row: own = its answers from the place of its pending token (or the prompt's last one) on\n"
                "        n = accepted guesses; new = those and own[n], cut to what is left and behind the end-of-text token\n"
                "        texts[request] += new; does it go on?\n"
                "    target.keep_rows(rows that go on); rows = their requests\n"
                "    target.rewind([len(texts[r]) - 1 for r in rows])\n"
                "    drafts = [draft(r, texts[r], min(count, left of r - 1)) for r in rows]; blocks = pending token and draft",
            ),
            cases.loop_cases, WRONG["7.4"], pictures.loops,
        ),
        Task(
            "7.5", "How large a batch still pays", "largest_batch", 20, 3, 20,
            (
                "Compare two ways to write the same number of tokens for the same batch: some plain passes, or one round.",
                "A plain pass over a batch of b reads b tokens, and emits b. A round reads b times (1 + drafted), and emits b times "
                "`emitted`. So how many plain passes does one round replace? And where does the curve end?",
                "seconds(n): the straight line between the two points around n\n"
                "for each b, as long as b * (1 + num_tokens) is on the curve:\n"
                "    it pays if emitted * seconds(b) > seconds(b * (1 + num_tokens)) + draft_s\n"
                "return the largest b that pays, else 0",
            ),
            cases.batch_cases, WRONG["7.5"], pictures.batches,
        ),
    ),
)  # fmt: skip
