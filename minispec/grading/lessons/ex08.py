"""Lesson 8: measuring, and what may be claimed of it."""

from minispec.grading.lessons import ex08_cases as cases
from minispec.grading.lessons import ex08_pictures as pictures
from minispec.grading.lessons.ex08_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    8,
    "ex08_measuring",
    (
        Task(
            "8.1", "Acceptance, place by place", "acceptance_by_position", 15, 2, 15,
            (
                "For each place ask twice: in how many rounds was a guess there put to the test? And in how many of those did it pass?",
                "A round that drafted 4 and accepted 1 has tested two guesses: the first passed, the second failed, the others were "
                "never looked at. One that drafted 1 and accepted it has tested one. What is the formula for both?",
                "tested in a round: the smaller of drafted and accepted + 1\n"
                "for i = 0, 1, ... as long as some round has tested more than i:\n"
                "    rate i = rounds that accepted more than i / rounds that tested more than i",
            ),
            cases.position_cases, WRONG["8.1"], pictures.rates,
        ),
        Task(
            "8.2", "Four numbers called acceptance", "four_acceptances", 15, 1, 10,
            (
                "Add up the three columns first. Three of the numbers are a sum divided by something.",
                "Which numbers count the target's own token, and which rounds had no first guess? Take what was emitted from the round: it "
                "is not always accepted + 1. And mind what you divide by.",
                "share: accepted by drafted, sums over all rounds (0 if nothing was drafted)\n"
                "accepted a round, emitted a round: sums by the number of all rounds\n"
                "first guess: rounds that accepted 1 or more by rounds that drafted 1 or more (0 if there is none)",
            ),
            cases.four_cases, WRONG["8.2"], pictures.four,
        ),
        Task(
            "8.3", "What a reader waits for", "reading_times", 10, 1, 10,
            (
                "Cut the story in two: the first pass with its one token, and everything after it.",
                "The times are moments. How long did the rounds take together, and how many tokens did they emit together? Divide sums, "
                "not round by round.",
                "first token: the moment of the first pass\n"
                "each token after: (last moment - first moment) / tokens of all passes but the first\n"
                "tokens a pass: tokens of all passes but the first / number of those passes; without any, both are 0",
            ),
            cases.times_cases, WRONG["8.3"], pictures.times,
        ),
        Task(
            "8.4", "The best length, and the oracle", "length_and_oracle", 25, 4, 30,
            (
                "Guess k is emitted only if the first k all pass. So what does it add to the tokens of a round?",
                "With n guesses: tokens = 1 + a1 + a1 a2 + ... up to n factors; time = a pass over 1 + n tokens, and n draftings. The oracle "
                "drafts exactly as many as will pass. With which probability are exactly n of the guesses right? What are its mean tokens and "
                "its mean time?",
                "speedup of n = tokens(n) * cost[1] / (cost[1 + n] + n * draft_s), and 1 for n = 0; take the first n with the highest\n"
                "chance of exactly n = a1 * ... * an * (1 - a(n+1)); without the last factor where n is all there are\n"
                "oracle = cost[1] * sum of chance * (1 + n) / sum of chance * (cost[1 + n] + n * draft_s)",
            ),
            cases.length_cases, WRONG["8.4"], pictures.lengths,
        ),
        Task(
            "8.5", "A ratio that survives the machine", "paired_speedup", 15, 2, 15,
            (
                "What do two runs share that were made one right after the other?",
                "If the machine gets slower, both runs of a repeat do, and their ratio stays. So divide within a repeat first. And a median "
                "of an even number of values lies between the two middle ones; torch.median takes the lower of them.",
                "for each request: the median of base[i][j] / mine[i][j] over its repeats j\n"
                "return the median of these over the requests, the smallest of them, the largest of them",
            ),
            cases.paired_cases, WRONG["8.5"], pictures.pairs,
        ),
        Task(
            "8.6", "A verdict on a claim", "claim_verdict", 20, 4, 25,
            (
                "Write the sum of the statement as a function of k first, and look at it for n = 5, 6 and 9.",
                "Sort. The larger k is, the narrower the interval, and the less sure. Take the largest k that is still sure enough; for few "
                "ratios not even k = 1 is. math.comb(n, i) counts the ways.",
                "sure(k) = 1 - 2 * (comb(n, 0) + ... + comb(n, k - 1)) / 2**n\n"
                "k = the largest with sure(k) >= 0.95; none: return None, None, 'cannot tell'\n"
                "low, high = k-th smallest, k-th largest\n"
                "low >= claim: supported; high < claim: not supported; else: cannot tell",
            ),
            cases.claim_cases, WRONG["8.6"], pictures.claims,
        ),
    ),
)  # fmt: skip
