"""Lesson 3: rejection sampling."""

from minispec.grading import pictures
from minispec.grading.lessons import ex03_cases as cases
from minispec.grading.lessons import ex03_cases_rule as rule
from minispec.grading.lessons.ex03_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    3,
    "ex03_rejection_sampling",
    (
        Task(
            "3.1", "What is left over, row by row", "residual", 15, 2, 10,
            (
                "The formula is that of the notebook. What is new: many rows at once, and a q that has fewer columns than p.",
                "An id that q does not know has q = 0. Each row is divided by its own sum. And a row that has nothing left over must "
                "not be divided by 0: there p itself is the answer.",
                "make q as wide as p, with zeros\n"
                "left = p - q, and 0 where that is negative\n"
                "mass = the sum of each row, kept as a column\n"
                "where mass > 0: left / mass, else p",
            ),
            cases.residual_cases, WRONG["3.1"], pictures.residuals, ("torch.float64",),
        ),
        Task(
            "3.2", "The test, in logarithms", "keep", 10, 2, 10,
            (
                "u < p / q. Take the logarithm of both sides.",
                "The logarithm of 0 is minus infinity, and torch compares infinities as you would. Never go back to p and q "
                "themselves: exp(-800) is 0 in float64. Is your comparison strict?",
                "keep where log(u) < log_p - log_q",
            ),
            cases.keep_cases, WRONG["3.2"], pictures.keeps,
        ),
        Task(
            "3.3", "An honest q", "honest_q", 15, 2, 15,
            (
                "Ask of each token: how probable was it that the drafter would guess it? Do the numbers add up to 1?",
                "Temperature divides the logits, before softmax. Top-k takes tokens out of the race: their logits become minus "
                "infinity. And at temperature 0 there are no dice: one token is certain.",
                "temperature 0: 1 at the likeliest token, 0 elsewhere\n"
                "top_k above 0: keep the top_k largest logits, set the others to minus infinity\n"
                "softmax of the logits divided by the temperature",
            ),
            cases.honest_cases, WRONG["3.3"], pictures.honest, ("torch.float64",),
        ),
        Task(
            "3.4", "The rule for a batch of drafts", "verify_chain", 35, 4, 40,
            (
                "Write it for one row first, in a loop over its guesses, then call that for each row. Speed does not matter here.",
                "Guess i is tested with row i of p and of q, and with u[i + 1]. A row's draft ends at its own first -1. The last "
                "token comes from the residual only where a guess was rejected; where the draft just ended, from the p of that place.",
                "for each row:\n"
                "    n = 0\n"
                "    while guess n is there and u[n + 1] * q[n, guess] < p[n, guess]: n = n + 1\n"
                "    law = residual of p[n] and q[n] if guess n is there, else p[n]\n"
                "    token = pick from law with u[0]",
            ),
            rule.chain_cases, WRONG["3.4"], pictures.chains,
        ),
        Task(
            "3.5", "A second chance: siblings", "choose_sibling", 25, 5, 35,
            (
                "After the first sibling was rejected, what should the token's law be, for all to come out right? And what was the "
                "second sibling really drawn from?",
                "After a rejection the law to be reached is no longer p but the residual. And the next sibling was drawn from q "
                "without those that went before it, divided by what is left of q. Then it is the same step again.",
                "for each sibling x, number i:\n"
                "    keep it if u[i + 1] * q[x] < p[x]: return i, x\n"
                "    p = residual of p and q\n"
                "    q[x] = 0; q = q / its sum\n"
                "return -1, pick from p with u[0]",
            ),
            rule.sibling_cases, WRONG["3.5"], pictures.siblings,
        ),
    ),
)  # fmt: skip
