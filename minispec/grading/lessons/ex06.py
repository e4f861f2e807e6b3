"""Lesson 6: EAGLE."""

from minispec.grading.lessons import ex06_cases as cases
from minispec.grading.lessons import ex06_pictures as pictures
from minispec.grading.lessons.ex06_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    6,
    "ex06_eagle",
    (
        Task(
            "6.1", "Input, teacher, mask", "training_rows", 15, 3, 15,
            (
                "Take a text of four tokens and write three rows below it: the token that each place reads, the place where its teacher "
                "stands, and whether it counts. Do the last two places with care.",
                "With feature j the layer reads token j + 1 + step. It shall say what the target says there, so its teacher stands at that "
                "place too. What is guessed is the token behind it, j + 2 + step: that one must be in the text, in the answer, and draftable.",
                "inputs = tokens moved by 1 + step, -1 behind the end\n"
                "teachers = j + 1 + step where the input is no -1, else -1\n"
                "guessed = tokens moved by 2 + step, -1 behind the end\n"
                "counted = guessed is no -1, and the mark of the answer moved by 2 + step, and can_draft[guessed]",
            ),
            cases.training_cases, WRONG["6.1"], pictures.pairs,
        ),
        Task(
            "6.2", "Back to the target's vocabulary", "to_target", 10, 2, 10,
            (
                "For each column ask: which token of the target is this? Then put its logit there.",
                "d2t holds offsets, not ids. What no column stands for has probability 0; which logit gives that?",
                "wide = [batch, vocab], all minus infinity\n"
                "wide[:, i + d2t[i]] = logits[:, i], for all columns i at once",
            ),
            cases.vocabulary_cases, WRONG["6.2"], pictures.wide, ("torch.float64",),
        ),
        Task(
            "6.3", "Many drafts in one pass", "unrolled_mask", 15, 4, 20,
            (
                "Every place begins a draft of its own. When it drafts for real, which keys are in the cache at its second step? Those that "
                "were committed, and those of this one draft.",
                "Keys of step 0 come from true features: place j sees those of places 0 to j. Keys of later steps come from guesses, and "
                "each belongs to the draft of one place. So of each later step, place j sees the key of place j, and no other.",
                "step 0: a lower triangle, with its diagonal\n"
                "each later step: the diagonal alone\n"
                "put them side by side; the positions are 0 to time - 1, then the same plus 1, plus 2, ...",
            ),
            cases.unrolled_cases, WRONG["6.3"], pictures.board,
        ),
        Task(
            "6.4", "A chain, round after round", "eagle_chain", 30, 4, 35,
            (
                "The first pass reads what the target has computed since; every other pass reads the layer's own output. What of the cache "
                "is still worth something?",
                "The cache may keep the first `read` pairs. Pair j is feature j with token j + 1, so the missing ones are features[read:] with "
                "text[read + 1:]. The last output gives the first guess; that output and that guess are the next pair.",
                "count 0: return nothing, without a pass\n"
                "layer.rewind(read); outputs = layer.step(features[read:], text[read + 1:])\n"
                "count times: column = likeliest of layer.logits(outputs)[-1]; guess = column + d2t[column]\n"
                "    if more are wanted: outputs = layer.step(outputs[-1:], [guess])",
            ),
            cases.chain_cases, WRONG["6.4"], pictures.chain,
        ),
        Task(
            "6.5", "A tree that grows where it is sure", "dynamic_tree", 30, 5, 40,
            (
                "Keep two lists: all nodes that were seen, and those of the last level. A node is a path and its score.",
                "A score is the sum of log-probabilities, so it never rises on the way down. Of the last level the top_k best are asked about, in "
                "one call. At the end rank everything that was seen, all levels together; where a child scores as high as its parent, the "
                "parent goes first. What stays then hangs together.",
                "last = [(0, [])], seen = []\n"
                "depth times, as long as last is not empty:\n"
                "    laws = expand(the paths in last)\n"
                "    below = for each of them its top_k likeliest tokens of probability above 0: (score + log-probability, path + token)\n"
                "    seen = seen + below; last = the top_k of below with the highest scores\n"
                "kept = the first `nodes` of seen, sorted by (score from the highest down, length); then number them, parents first",
            ),
            cases.tree_cases, WRONG["6.5"], pictures.tree,
        ),
    ),
)  # fmt: skip
