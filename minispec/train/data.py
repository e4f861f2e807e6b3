"""The text that drafters learn from: the target's own answers to prompts of eight kinds, and to prompts of its own.

    minispec train data --tokens 3000000                  # saves every few minutes; run again, it goes on

A drafter has to guess what this target writes, so the target writes the training text: half of it greedily, half at
temperature 0.8. The first prompts come from templates, topics and seeded random choices; a text to summarise or code to edit
is what the target wrote before. A drafter that reads nothing else learns the templates: so most of the later prompts are
what the target itself writes where a user's message would stand (Xu et al. 2024, "Magpie"). Every 21st text is held out: it
measures drafters, and never trains one.
"""

from __future__ import annotations

import json
import random
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from minispec.hub import LanguageModel

SHORT = ("chat", "explain", "code", "reasoning")
LONG = ("summarise", "rewrite", "code edit", "question")  # these build on earlier answers
OWN = "own"  # the target wrote the prompt too
KINDS = (*SHORT, *LONG, OWN)
TEMPLATES = 20  # so many batches come from templates alone; from then on, four of every sixteen
HELD_OUT = 21  # every 21st text; odd, so that every kind is among them
LISTS = json.loads((Path(__file__).parent / "prompts.json").read_text())


@dataclass
class Text:
    """Ids of a prompt and of the target's answer, uint16, and where they came from."""

    kind: str
    prompt: np.ndarray
    answer: np.ndarray
    temperature: float


@dataclass
class Corpus:
    """Texts in the order in which they were made, in one compressed file."""

    texts: list[Text] = field(default_factory=list)
    target: str = "smollm2-135m"  # whose answers and ids these are

    @property
    def tokens(self) -> int:
        """Tokens of the answers."""
        return sum(len(text.answer) for text in self.texts)

    def split(self) -> tuple[list[Text], list[Text]]:
        """Texts to train on, and the fixed held-out ones."""
        held = self.texts[::HELD_OUT]
        return [text for i, text in enumerate(self.texts) if i % HELD_OUT], held

    def save(self, file: Path) -> None:
        """Write beside, then rename: a stop at any moment leaves the old file or the new one."""
        part = file.with_name(f".{file.stem}.part.npz")
        empty = [np.zeros(0, np.uint16)]
        np.savez_compressed(
            part,
            ids=np.concatenate(empty + [ids for text in self.texts for ids in (text.prompt, text.answer)]),
            lengths=np.array([(len(text.prompt), len(text.answer)) for text in self.texts], np.uint16),
            kinds=np.array([KINDS.index(text.kind) for text in self.texts], np.uint8),
            temperatures=np.array([text.temperature for text in self.texts], np.float32),
            target=np.array(self.target),
        )
        part.replace(file)

    @classmethod
    def load(cls, file: Path) -> Corpus:
        """Raises ValueError for a file that is not one of ours."""
        try:
            with np.load(file) as stored:
                lengths, ids = stored["lengths"].astype(int), stored["ids"]
                kinds, temperatures, target = stored["kinds"], stored["temperatures"], str(stored["target"])
        except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{file} is not a file of training text: {error}") from error
        ends = lengths.ravel().cumsum().reshape(-1, 2)
        texts = [
            Text(KINDS[kind], ids[stop - answer - prompt : stop - answer], ids[stop - answer : stop], float(temperature))
            for (prompt, answer), stop, kind, temperature in zip(lengths, ends[:, 1], kinds, temperatures, strict=True)
        ]
        return cls(texts, target)


def make_prompt(kind: str, chance: random.Random, texts: list[str], codes: list[str]) -> str:
    """One prompt of a kind; `texts` and `codes` are earlier answers that it may build on."""
    name, name2 = chance.sample(LISTS["names"], 2)
    topic, other = chance.sample(LISTS["topics"], 2)
    material = chance.choice(texts) if texts else ""
    return chance.choice(LISTS[kind]).format(
        topic=topic,
        other=other,
        text=material,
        code=chance.choice(codes) if codes else "",
        task=chance.choice(LISTS["tasks"]),
        name=name,
        name2=name2,
        things=chance.choice(LISTS["things"]),
        a=chance.randint(2, 30),
        b=chance.randint(2, 12),
        c=chance.randint(1, 9),
        big=chance.randint(40, 400),
    )


def own_prompts(lm: LanguageModel, count: int, seed: int) -> list[str]:
    """Messages that the target writes in the user's place; an empty one becomes a greeting."""
    from minispec.decode import generate_batch
    from minispec.sampling import Sampling

    mark = "MARK"
    before = lm.tokenizer.decode(lm.encode_chat([{"role": "user", "content": mark}])).split(mark)[0]
    ids = lm.tokenizer(before, add_special_tokens=False, return_tensors="pt").input_ids[0]
    sampling = Sampling(temperature=1.0, top_p=0.9)
    written = generate_batch(lm, [ids] * count, max_new_tokens=80, sampling=sampling, seed=seed)
    texts = [lm.tokenizer.decode(message.tokens, skip_special_tokens=True).strip() for message in written]
    return [text or "Hello!" for text in texts]


def next_batch(lm: LanguageModel, corpus: Corpus, size: int, seed: int) -> tuple[list[tuple[str, str]], float]:
    """Pairs of (kind, prompt) and their temperature, to follow on `corpus`; the same ones for the same seed.

    In turn, two batches of short prompts, one greedy and one not, and two of prompts that carry a text: alike in length, so
    that little of a pass over prompts is padding.
    """
    number = len(corpus.texts) // size
    chance = random.Random(f"{seed}/{number}")
    temperature = 0.8 if number % 2 else 0.0
    if number >= TEMPLATES and number // 4 % 4:
        return [(OWN, prompt) for prompt in own_prompts(lm, size, chance.randrange(1 << 31))], temperature
    kinds = SHORT if number // 2 % 2 == 0 else LONG
    texts, codes = material(lm, corpus, chance)
    return [(kinds[i % 4], make_prompt(kinds[i % 4], chance, texts, codes)) for i in range(size)], temperature


def material(lm: LanguageModel, corpus: Corpus, chance: random.Random) -> tuple[list[str], list[str]]:
    """Earlier answers to build on: passages of 25 to 100 words, and pieces of code of up to 20 lines."""
    texts, codes = [], []
    for text in chance.sample(corpus.texts, min(400, len(corpus.texts))):
        words = lm.tokenizer.decode(text.answer, skip_special_tokens=True).strip()
        if text.kind == "code" and "```" in words:
            lines = words.split("```")[1].split("\n")[1:21]
            codes += ["```python\n" + "\n".join(lines).strip() + "\n```"] if len(lines) > 3 else []
        elif text.kind in ("explain", "chat"):
            length, passage = chance.randint(30, 100), ""
            for sentence in words.replace("\n\n", "\n").split(". "):
                if len((passage + sentence).split()) > length:
                    break
                passage += sentence.rstrip(".") + ". "
            texts += [passage.strip()] if len(passage.split()) >= 25 else []
    return texts, codes


def write_corpus(lm: LanguageModel, file: Path, tokens: int, batch: int, max_new_tokens: int, seed: int) -> Corpus:
    """Let the target answer until `file` holds that many answer tokens; goes on from what `file` already holds."""
    from tqdm import tqdm

    from minispec.decode import generate_batch
    from minispec.sampling import Sampling

    if lm.model.config.vocab_size > 1 << 16:
        raise ValueError(f"training text is kept in 16 bits a token, and {lm.name} has {lm.model.config.vocab_size} ids")
    corpus = Corpus.load(file) if file.exists() else Corpus(target=lm.name)
    if corpus.target != lm.name:
        raise ValueError(f"{file} holds answers of {corpus.target}, not of {lm.name}; name another file")
    saved = time.monotonic()
    with tqdm(total=tokens, initial=corpus.tokens, unit="token", disable=not sys.stderr.isatty()) as bar:
        while corpus.tokens < tokens:
            prompts, temperature = next_batch(lm, corpus, batch, seed)
            answers = generate_batch(
                lm,
                [prompt for _, prompt in prompts],
                max_new_tokens=max_new_tokens,
                sampling=Sampling(temperature),
                seed=seed + len(corpus.texts),
            )
            for (kind, prompt), answer in zip(prompts, answers, strict=True):
                ids = lm.encode(prompt).numpy().astype(np.uint16)
                corpus.texts.append(Text(kind, ids, answer.tokens.numpy().astype(np.uint16), temperature))
                bar.update(len(answer.tokens))
            if time.monotonic() - saved > 120:
                corpus.save(file)
                saved = time.monotonic()
    corpus.save(file)
    return corpus
