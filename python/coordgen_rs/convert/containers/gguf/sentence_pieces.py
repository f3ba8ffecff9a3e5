"""A SentencePiece vocabulary with scores as a BPE tokenizer.

In: pieces and scores. Out: a `Tokenizer` that joins, of all neighbours whose join is a piece, those
with the best score first, as SentencePiece does; characters that are no piece become bytes.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE

_SPACE = "▁"


def sentence_piece_tokenizer(
    pieces: Sequence[str],
    scores: Sequence[float],
    joined: Sequence[bool],
    unknown: str | None,
    *,
    add_space: bool,
) -> Tokenizer:
    """A tokenizer without added tokens.

    Args:
        pieces: Texts by token id, with spaces as U+2581.
        scores: Scores by token id; the best are joined first.
        joined: Whether a token arises from joining others, by token id.
        unknown: The token of what is in no piece and has no bytes.
        add_space: Whether a space is put before a text.
    """
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    model = BPE(
        vocab=vocabulary,
        merges=_merges(pieces, scores, joined, vocabulary),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    return spaced_tokenizer(model, add_space=add_space)


def spaced_tokenizer(model: BPE, *, add_space: bool = False) -> Tokenizer:
    """A tokenizer whose pieces have U+2581 for spaces, and bytes for characters that are none.

    Args:
        model: How pieces are joined.
        add_space: Whether a space is put before a text.
    """
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if add_space else replace
    )
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space:
        decoding.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(decoding)
    return tokenizer


def _merges(
    pieces: Sequence[str],
    scores: Sequence[float],
    joined: Sequence[bool],
    vocabulary: dict[str, int],
) -> list[tuple[str, str]]:
    """Every way to join two pieces to a piece, best score first."""
    ordered = sorted(range(len(pieces)), key=lambda number: -scores[number])
    merges = []
    for number in ordered:
        if joined[number]:
            piece = pieces[number]
            cuts = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
            found = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
            merges += sorted(found, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
    return merges
