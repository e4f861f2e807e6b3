"""Lesson 5: Medusa."""

from minispec.grading.lessons import ex05_cases as cases
from minispec.grading.lessons import ex05_pictures as pictures
from minispec.grading.lessons.ex05_bank import WRONG
from minispec.grading.task import Lesson, Task

LESSON = Lesson(
    5,
    "ex05_medusa",
    (
        Task(
            "5.1", "What each head learns", "head_targets", 15, 2, 10,
            (
                "Write the places of a short text under one another. Which token does the target itself guess at place 2, and which "
                "one is left for the first head?",
                "Head k looks k + 2 places ahead. Move the tokens that far towards the front, and the marks of the answer just as far: "
                "it is the guessed token that must be in the answer. Behind the end comes -1, not the beginning of the text.",
                "for each head k:\n"
                "    moved = all -1; moved[:, : time - k - 2] = tokens[:, k + 2 :] (if there are so many)\n"
                "    the same with the marks of the answer, and False for -1\n"
                "    -1 wherever the moved mark is False",
            ),
            cases.target_cases, WRONG["5.1"], pictures.learnt,
        ),
        Task(
            "5.2", "Who sees whom", "tree_mask", 15, 3, 15,
            (
                "Start at a node and go up, parent by parent, to the pending token. Those are the places that it sees.",
                "Node i stands at block position i + 1, and its parent is a block position already. The depth is the number of steps up. "
                "Since a parent may stand behind its child, copying the parent's row works only if that row is finished.",
                "mask = each place sees itself\n"
                "for each row, for each node i that is no padding:\n"
                "    at = i + 1; until at is 0: at = parents[row, at - 1]; mask[row, i + 1, at] = True; one step more\n"
                "    positions[row, i + 1] = lengths[row] + steps",
            ),
            cases.mask_cases, WRONG["5.2"], pictures.boards,
        ),
        Task(
            "5.3", "From guesses to a tree", "fill_tree", 15, 3, 15,
            (
                "A path such as [0, 2] is a node. Which head has guessed its token, and which of that head's guesses is it?",
                "The length of a path is its depth, and its last rank is the node's own. Its parent is the path without that rank. Sort "
                "first; then a node's place in the order, plus 1, is its block position.",
                "nodes = paths, sorted by (length, path)\n"
                "best = columns of each head from the likeliest down\n"
                "token of a node: vocabulary[best[:, length - 1, last rank]]\n"
                "parent: 0 for a path of one rank, else 1 + place of the path without its last rank",
            ),
            cases.fill_cases, WRONG["5.3"], pictures.filled,
        ),
        Task(
            "5.4", "The tree that pays most", "best_shape", 20, 4, 25,
            (
                "What does one node add to the tokens that a round emits? Only if its whole path is right does it add one.",
                "A node is worth the product of the rates along its path, so never more than its parent. So the best tree of n nodes is "
                "the n worthiest paths there are. Then compare all n, from 0 to `most`: do not stop at the first that does not pay.",
                "every path: all combinations of ranks, of every length up to the number of heads\n"
                "sort them by the product of their rates, the worthiest first\n"
                "for n = 0, 1, ..., most: ratio = (1 + the sum of the first n products) / cost[n]\n"
                "return the first n paths, for the n with the largest ratio",
            ),
            cases.shape_cases, WRONG["5.4"], pictures.shaped,
        ),
        Task(
            "5.5", "Medusa, to its last token", "medusa", 35, 5, 45,
            (
                "It is the loop of greedy speculative decoding; only the draft is a tree now. Write the prompt's pass first, then one round.",
                "Keep three things from round to round: how many tokens the cache holds, the pending token, and the state from whose logits "
                "that token came. In the block the pending token stands at 0. Going down: the likeliest token after place `at` is emitted; "
                "if a child of `at` holds it, go there, else the round ends.",
                "read the prompt: positions 0 to n - 1, each token sees itself and those before it\n"
                "as long as tokens are left to emit:\n"
                "    tree = fill_tree(paths no longer than left - 1, heads(state)[None], vocabulary)\n"
                "    mask, positions = tree_mask(parents[None], [length]); read [pending, *tokens] with row 0 of both\n"
                "    at = 0, path = [0]; emit the likeliest token after `at`, go to the child that holds it, until there is none\n"
                "    target.keep(path); length = length + len(path); state = states[at]; pending = last token emitted",
            ),
            cases.loop_cases, WRONG["5.5"], pictures.rounds,
        ),
    ),
)  # fmt: skip
