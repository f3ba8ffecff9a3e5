"""A tokenizer of bytes and marks, so that grammars of calls can be followed without a model.

In: the texts that are tokens of their own. Out: what a grammar in Lark makes of a text.
"""

from functools import cache

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from coordgen_rs.text.grammar.kinds import Lark
from coordgen_rs.text.grammar.vocabulary import Vocabulary
from coordgen_rs.text.tokenizer import Tokenizer as OwnTokenizer

END = "<|im_end|>"


class MarkedTokens:
    """The tokenizer with its marks.

    Args:
        marks: Texts that are special tokens.
        ends: Those that end an answer, besides `END`.
    """

    def __init__(self, marks=(), ends=()):
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
        # One mark that no form knows is text, too, wherever text may be.
        special = [END, "<|other|>", *marks, *ends]
        tokenizer.add_special_tokens(
            [AddedToken(one, special=True, normalized=False) for one in dict.fromkeys(special)]
        )
        self._tokenizer = tokenizer
        self.ends = [tokenizer.token_to_id(one) for one in (END, *ends)]
        self.tokenizer = OwnTokenizer.__new__(OwnTokenizer)
        self.tokenizer._tokenizer, self.tokenizer._path = tokenizer, "a test"
        self.vocabulary = Vocabulary(self.tokenizer, tokenizer.get_vocab_size(), self.ends)

    def added(self):
        """The tokens that were added, with their ids."""
        return self.tokenizer.added_tokens()

    def refused_at(self, grammar, text):
        """Where a grammar, or one in Lark, refuses a text; None where it allows all of it, and -1
        where the text may not end there."""
        matcher = self.vocabulary.matcher(Lark(grammar) if isinstance(grammar, str) else grammar)
        matcher.begin()
        encoded = self._tokenizer.encode(text, add_special_tokens=False)
        for token, (start, _) in zip(encoded.ids, encoded.offsets, strict=True):
            matcher.after([])
            if not matcher.words[token // 32] >> np.uint32(token % 32) & 1:
                return start
            matcher.extend([token])
        matcher.after([])
        end = self.ends[0]
        return None if matcher.words[end // 32] >> np.uint32(end % 32) & 1 else -1

    def masks(self, lark, text):
        """What may follow each token of a text, as bytes: asked one token after the other."""
        matcher, found = self.vocabulary.matcher(Lark(lark)), []
        matcher.begin()
        for token in self._tokenizer.encode(text, add_special_tokens=False).ids:
            matcher.after([])
            found.append(matcher.words.tobytes())
            matcher.extend([token])
        return found

    def masks_of_drafts(self, lark, text, widths):
        """The same, asked as drafts are verified: paths in any order, then what was taken."""
        matcher, found, at = self.vocabulary.matcher(Lark(lark)).another(), [], 0
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        matcher.begin()
        while at < len(ids):
            width = widths[at % len(widths)]
            taken = ids[at : at + width]
            matcher.possible([0, *taken], [0, *range(len(taken))])
            asked = {}
            for length in sorted(range(len(taken)), key=lambda n: (n * 7) % 5):
                matcher.after(taken[:length])
                asked[length] = matcher.words.tobytes()
                matcher.forced(taken[:length])
            found += [asked[length] for length in range(len(taken))]
            matcher.extend(taken)
            at += len(taken)
        return found


@cache
def marked_tokens(marks=(), ends=()):
    """The tokenizer of these marks, made once."""
    return MarkedTokens(marks, ends)
