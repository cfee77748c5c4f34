"""What the mixed load asks of which models, and what the answers have to be.

A kind of models says of plain requests, of requests of a sequence and of streams what is sent and
whether the answer is right: checks give a text where it is not.
"""

import numpy as np

import real_models
import repository


class First:
    """Answers by request: each has to be what it was the first time."""

    def __init__(self):
        self.answers = {}

    def check(self, key, value):
        first = self.answers.setdefault(key, value)
        if not np.array_equal(first, value):
            return f"{key}: expected {first}, got {value}"
        return None


class Small:
    """Small models with seeded weights: sums, an LSTM, a decoder that spells."""

    served = ("accumulate", "lstm", "speller_steps")
    sequence_model = "accumulate"
    patience = 0.002
    """Seconds within which a client that leaves does so."""

    def __init__(self, rng, seed):
        self.rng, self.first = rng, First()
        rows = np.random.default_rng(seed)
        self.rows = [rows.normal(size=(1, n, 16)).astype(np.float32) for n in range(1, 41)]

    @staticmethod
    def write(root):
        repository.write(root)
        # A machine that is busy with other things must not look like a client that idles.
        config = root / "accumulate" / "config.pbtxt"
        config.write_text(config.read_text().replace("5000000", "60000000"))

    def plain(self):
        """Model, inputs, and a check of the answer."""
        x = self.rng.choice(self.rows)
        # Rows do not depend on the batch that they were computed in.
        return "lstm", {"x": x}, lambda result: self.first.check(
            f"lstm of {x.shape[1]}", result.as_numpy("scores"))

    def sequence(self):
        """The state of a sequence that begins."""
        return 0.0

    def step(self, total):
        """Inputs of a sequence's next request, whether it is the last, a check of the answer, and
        the state behind it."""
        value = float(self.rng.randrange(100))

        def check(result):
            got = float(result.as_numpy("TOTAL")[0, 0])
            return None if got == total + value else f"expected {total + value}, got {got}"

        given = {"INPUT": np.array([[value]], np.float32)}
        return given, self.rng.random() < 0.15, check, total + value

    def stream(self):
        """Model, inputs, parameters, the output that comes, and a check of the numbers that came,
        all of them or the first ones."""
        letters = tuple(self.rng.randrange(3, 12) for _ in range(self.rng.randrange(2, 7)))

        def check(tokens, is_whole):
            return self.first.check(letters, tokens) if is_whole else None

        given = {"letters": np.array([letters], np.int32)}
        return "speller_steps", given, {}, "tokens", check


class Pretrained:
    """silero-vad over recordings, stories260K from somewhere in its story, embeddings of sentences by
    MiniLM and phonemes of words by g2p_en."""

    served = ("silero-vad", "stories260K_steps", "minilm-l6", "g2p_en")
    sequence_model = "silero-vad"
    patience = 0.006

    def __init__(self, rng, _):
        self.rng, self.first = rng, First()
        self.recordings = list(real_models.recordings())
        self.sentences = real_models.sentences()
        self.words = list(real_models.spellings())
        self.story, _ = real_models.story()

    @staticmethod
    def without():
        """Why they cannot be served; empty if they can."""
        if real_models.missing():
            return f"no {', '.join(real_models.missing())} in {real_models.MODELS}"
        return "" if real_models.has_stories() else real_models.NO_STORIES

    @staticmethod
    def write(root):
        real_models.write(root)
        # Sequences that their clients leave are forgotten, others not.
        config = root / "silero-vad" / "config.pbtxt"
        config.write_text(real_models.VAD % (60_000_000, 256))

    def plain(self):
        if self.rng.random() < 0.5:
            word, ids, want = self.rng.choice(self.words)

            def check(result):
                got = real_models.phonemes(result.as_numpy("tokens")[0])
                return None if got == want else f"{word}: expected {want}, got {got}"

            return "g2p_en", {"source": ids}, check
        text, _, want = self.rng.choice(self.sentences)

        def check(result):
            got = result.as_numpy("embedding")[0]
            off = np.abs(got - want).max()
            if not off < 1e-5:
                return f"{text}: an element is {off} off"
            return self.first.check(text, got)

        return "minilm-l6", {"text_input": np.array([[text.encode()]], np.object_)}, check

    def sequence(self):
        return self.rng.randrange(len(self.recordings)), 0

    def step(self, state):
        which, at = state
        name, chunks, want = self.recordings[which]

        def check(result):
            got = result.as_numpy("output")[0, 0]
            if not abs(got - want[at]) < 1e-4 * want.max():
                return f"{name}, chunk {at}: expected {want[at]}, got {got}"
            return self.first.check((name, at), got)

        is_last = at + 1 == len(chunks) or self.rng.random() < 0.02
        return {"input": chunks[at]}, is_last, check, (which, at + 1)

    def stream(self):
        start, steps = self.rng.randrange(1, 160), self.rng.randrange(8, 65)
        want = self.story[start:start + steps]

        def check(tokens, is_whole):
            right = tokens == (want if is_whole else want[:len(tokens)])
            return None if right else f"story from {start}: expected {want}, got {tokens}"

        given = {"prompt": np.array([self.story[:start]], np.int32)}
        return "stories260K_steps", given, {"max_tokens": steps}, "tokens", check
